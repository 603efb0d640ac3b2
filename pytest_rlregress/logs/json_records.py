"""Reads a log's record in JSON, and a server's refusal, as the lines and the level that they stand for."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

# As Python's json loggers, structlog, loguru, Ray, docker, Elastic, Google and OpenTelemetry call them.
_LEVELS = ("level", "levelname", "severity", "log.level", "severityText", "lvl", "log_level")
_TEXTS = ("message", "msg", "event", "text", "log", "textPayload", "body", "content")
_TRACEBACKS = ("exc_info", "exc_text", "exception", "traceback", "stack_trace", "error.stack_trace", "stack", "exc")
_BODY = re.compile(r"\{\s*['\"](?:error|object)['\"]\s*:\s*(?:\{|['\"]error['\"]).*\}")
_CLASS = re.compile(r"[A-Z]\w*(?:Error|Exception)")


def read(text: str) -> list[tuple[str, str]] | None:
    """Return level and text of each line that a record stands for; None of what is no record."""
    if body := _BODY.search(text):
        refusal = _refusal(_parsed(body[0]))
        if refusal and not re.search(r"\w(?:Error|Exception): ", text[: body.start()]):
            return [("ERROR", refusal)]
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return None
    record = _parsed(text.rstrip())
    if not isinstance(record, dict):
        return None
    inner = record.get("record")
    record = {**(inner if isinstance(inner, dict) else {}), **record}
    level = _level(next((record[key] for key in _LEVELS if key in record), ""))
    texts = [record[key] for key in _TEXTS if isinstance(record.get(key), str)][:1]
    texts += [
        part for key in _TRACEBACKS if not "".join(texts).count("Traceback (") for part in _traceback(record.get(key))
    ]
    return [(level, line) for one in texts for line in one.rstrip("\n").split("\n")] or None


def _parsed(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(text)  # as Python prints a dict
    return None


def _refusal(body: Any) -> str | None:
    """What an OpenAI-compatible server answers: its exception's class and message, as Python prints them."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    kind, message = str(error.get("type")), " ".join(error["message"].split())
    return f"{kind}: {message}" if _CLASS.fullmatch(kind) else message


def _level(level: Any) -> str:
    name = str(level.get("name", "")) if isinstance(level, dict) else str(level)
    return {"WARN": "WARNING", "ERR": "ERROR", "FATAL": "CRITICAL"}.get(name.upper(), name.upper())


def _traceback(value: Any) -> Iterator[str]:
    """A traceback as text, or as structlog's and loguru's lists and tables of it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(one, str) for one in value):
        yield "".join(one if one.endswith("\n") else f"{one}\n" for one in value)
    elif isinstance(value, list):
        for one in reversed(value):  # the cause is last
            yield from _traceback(one)
    elif isinstance(value, dict):
        frames = [
            f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
            for frame in value.get("frames") or ()
            if isinstance(frame, dict)
        ]
        name, text = (value.get(f"exc_{key}", value.get(key)) for key in ("type", "value"))
        if name:
            header = "Traceback (most recent call last):"
            yield "\n".join([*([header, *frames] if frames else []), f"{name}: {text}"])
