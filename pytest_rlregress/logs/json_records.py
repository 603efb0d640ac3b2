"""Reads a log's record in JSON, and a server's refusal, as the lines and the level that they stand for."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

# As Python's json loggers, structlog, loguru, Ray, docker, Elastic, Google and OpenTelemetry call them.
_LEVELS = ("level", "levelname", "severity", "log.level", "severityText", "lvl", "log_level")
_TEXTS = ("message", "msg", "event", "text", "log", "textPayload", "body", "content")
_TRACEBACKS = ("exc_info", "exc_text", "exception", "traceback", "stack_trace", "error.stack_trace", "stack", "exc")
_BODY = re.compile(r"\{\s*['\"](?:error|object)['\"]\s*:\s*(?:\{|['\"]error['\"]).*\}")
# A line of an answer that is printed over several.
_FIELD = re.compile(r"\s*\"(?:message|detail|msg)\": (?P<text>\"[^\n]{16,}\"),?\s*")
_CHAINING = "The above exception was the direct cause of the following exception:"
_CLASS = re.compile(r"[A-Z]\w*(?:Error|Exception)")


def read(text: str) -> list[tuple[str, str]] | None:
    """Return level and text of each line that a record, or a line of one, stands for; None of what isn't a record."""
    if (field := _FIELD.fullmatch(text)) and isinstance(said := _parsed(field["text"], json.loads), str):
        return [("", f"the request failed: {' '.join(said.split())}")]
    if body := _BODY.search(text):
        refusal = _refusal(_parsed(body[0], json.loads) or _parsed(body[0], ast.literal_eval))  # as Python prints it
        if refusal and not re.search(r"\w(?:Error|Exception): ", text[: body.start()]):
            return [("ERROR", refusal)]
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return None
    record = _parsed(text, json.loads)
    if not isinstance(record, dict):
        return None
    inner = record.get("record")  # loguru's, beside the text that it made of it
    records = [record, inner] if isinstance(inner, dict) else [record]
    level = _level(next((one[key] for one in records for key in _LEVELS if key in one), ""))
    texts = [one[key] for one in records for key in _TEXTS if isinstance(one.get(key), str)][:1]
    texts += [
        part for key in _TRACEBACKS if not "".join(texts).count("Traceback (") for part in _traceback(record.get(key))
    ]
    return [(level, line) for one in texts for line in one.rstrip("\n").split("\n")] or None


def _parsed(text: str, parse: Callable[[str], Any]) -> Any:
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return parse(text)
    return None


def _refusal(body: Any) -> str | None:
    """Read an OpenAI-compatible server's answer: its exception's class and message, as Python prints them."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    kind, message = str(error.get("type")), " ".join(error["message"].split())
    return f"{kind}: {message}" if _CLASS.fullmatch(kind) else message


def _level(level: Any) -> str:
    name = str(level.get("name", "")) if isinstance(level, dict) else str(level)
    return {"WARN": "WARNING", "ERR": "ERROR", "FATAL": "CRITICAL"}.get(name.upper(), name.upper())


def _traceback(value: Any) -> Iterator[str]:
    """Yield a traceback as text, or as structlog's list of tables."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(one, str) for one in value):
        yield "".join(one if one.endswith("\n") else f"{one}\n" for one in value)
    elif isinstance(value, list):
        for number, one in enumerate(reversed(value)):  # the cause is last
            if number:
                yield _CHAINING
            yield from _traceback(one)
    elif isinstance(value, dict) and isinstance(value.get("frames"), list):
        frames = [frame for frame in value["frames"] if isinstance(frame, dict)]
        yield "Traceback (most recent call last):"
        for frame in frames:
            yield f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
        yield f"{value.get('exc_type')}: {value.get('exc_value')}"
