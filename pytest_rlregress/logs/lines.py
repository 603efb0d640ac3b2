"""Reads a line of a log as its writer meant it: without colours, progress bars, prefixes of launchers and loggers, with
the line ends that were lost when it was posted or logged, and a record in JSON as the text that it stands for."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pytest_rlregress.util.text import SEQUENCE

_LONGEST, _LONGEST_RUN_TOGETHER = 8000, 100_000
# Also where the escape character got lost on the way, or is written out: logs of CI, of notebooks, of syslog.
_COLOUR = re.compile(
    rf"{SEQUENCE}|(?:\^\[|[␛←\ufffd\x9b]|\\(?:x1b|033|u001b|e)|\#033)\[[0-?]*[ -/]*[@-~]"
    r"|\??\[(?:\d{1,3}(?:;\d{1,3})*)m"
)
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
# A bar that ended in no newline; what was printed next stands right behind it. Some count without a total.
_BAR = re.compile(r"^(?:[^|]{0,200}\d+%(?: Completed )?\|[^|]*\|?[^\[]{0,80}|(?:[^:\[]{1,80}: )?\d+ ?it )\[[^\]]*\]")
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LEVELS = "TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL"
_LOWER = _LEVELS.lower()
_PREFIX = re.compile(
    rf"""
    (?P<process>
        \((?:[^()]*(?:\([^()]*\)[^()]*)?\bpid=\d+[^()]*|raylet[^()]*|autoscaler[^()]*|gcs_server[^()]*)\) # Ray, vLLM
        [ ]?(?:\w+\.cc:\d+:[ ])?
      | \[(?:raylet|gcs_server|(?:rank|default)\d+|\d+,\d+)\](?:<std(?:out|err)>)?:?[ ]?     # Ray, torchrun, mpirun
      | \[(?!\S+\.\w{{1,3}}:)[\w.-]+(?:[ ]*:\d+)+\][ ]                                       # UCX, Open MPI
      | [A-Z][a-z]{{2}}[ ]{{1,2}}\d{{1,2}}[ ]\d\d:\d\d:\d\d[ ][\w.-]+[ ](?:[\w./-]+\[\d+\]|kernel):[ ]?  # journald
      | [\w.-]+[ ](?:kernel|systemd\[\d+\]):[ ]                                              # journald with ISO dates
      | [\w.-]+-\d+[ ]+\|[ ]                                                                 # docker compose
      | \#\d+[ ](?:\d+\.\d+[ ]|(?=ERROR|CANCELED))                                           # BuildKit
      | \d{{1,4}}:[ ]                                                                        # srun --label
      | (?:\d{{1,3}}\.){{3}}\d{{1,3}}:[ ]                                                    # pdsh
      | [^\t]{{1,100}}\t[^\t]{{1,100}}\t\ufeff?(?=\d{{4}}-)                                  # gh run view --log
      | wandb:[ ]
    )
  | (?:>>>[ ])+(?=[(\[])                                                                       # Python's prompt
  | (?:\^[CZ\\])+(?=\S)                                                                      # a terminal's echo of keys
  | (?:FAILED|ERROR)[ ]\S+::.{{1,200}}?[ ]-[ ]                                                  # pytest's summary
  | (?P<record>
        (?P<glog>\[?[DIWEFC]\d{{3,4}}[ ]\d\d:\d\d:\d\d[.\d]*[ ]+(?:\d+[ ]+)?[\w./-]+:\d+\][ ]?)
      | [ ]{{0,4}}\[{_DATE}[ ](?P<ray>[DIWEFC])[ ]\d+[ ]\d+\][ ](?:\([\w .]+\)[ ])?[\w./-]+:\d+:[ ]
      | \[(?P<bracketed>{_LEVELS})(?:\|[\w./-]+:\d+)?\](?:[ ]{_DATE})?(?:[ ]>>|:|[ ]-)?[ ]?
      | (?P<level>{_LEVELS})(?::[\w.-]+:|[ ]*\|[ ]|[ ]-[ ]|:?[ ]+(?=\S)|:?$)
        (?:[\w.]+\.py:\d+[ ]--[ ])?
        (?:\d\d-\d\d[ ]\d\d:\d\d:\d\d[ ])?
        (?:\[[\w./-]+:\d+\](?:[ ]|$)|[\w./-]+:\d+\](?:[ ]|$)|[\w.<>]+:[\w.<>]+:\d+[ ]-[ ])?
      | (?:\#\#)?\[(?P<lower>{_LOWER})[ ]*\][ ]?                                             # structlog, GitHub
      | (?:srun|slurmstepd|sbatch|salloc):[ ](?P<slurm>error|fatal):[ ]
      | (?:time="[^"]*"[ ])?level=(?P<logfmt>{_LOWER})[ ]msg="?                              # docker, Kubernetes
    )
  | (?P<stamp>
        \[?(?:{_DATE}|\d\d/\d\d/\d\d(?:\d\d)?[ ]\d\d:\d\d:\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?(?=[ \]]))
        (?:[ ](?:DP|TP|PP|EP)\d+)*\]?
        (?:[ ]std(?:out|err)[ ][FP])?(?:[ ][|-](?=[ ]))?[ \t]?
        (?:(?:\[[\w.]+\]|[\w.-]+[ ]-[ ]|[\w.-]+[ ])?[ ]*(?=\[?(?:{_LEVELS})\b))?
    )
  | \[(?:[A-Za-z]+-\d+|\w+\.py:\d+)\][ ]                                                      # vLLM-Omni, cut lines
  | [ ]{{2,}}\|[ ]|E[ ]{{3,}}(?=[\w.]*(?:Error|Exception)\b)|E[ ]{{3}}                    # exception groups, pytest
  | \d+\.\d{{2,3}}[ ](?!\d)                                                                   # BuildKit's summary
  | \[[ ]{{0,6}}\d+\.\d{{6}}\][ ]|\[[A-Z][a-z]{{2}}[ ][A-Z][a-z]{{2}}[ ]{{1,2}}\d+[ ][\d:]{{8}}[ ]\d{{4}}\][ ]   # dmesg
    """,
    re.VERBOSE,
)
# A line of a report in Markdown, as ComfyUI writes it: "- **Exception Message:** No module named 'vllm'".
_MARKDOWN = re.compile(r"^[-*] \*\*(?P<name>[\w ]+):\*\*(?= )")
_MOST_PREFIXES = 8
_INITIALS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL", "C": "CRITICAL"}
# A side of a box: as it is, as a wrong encoding shows it, and in ASCII, where the other side must be there too.
_SIDE = "(?:[│┃║]|â”‚|â\x94\x82)"
_BOXED = re.compile(rf"^\s*{_SIDE}(?: (?P<inner>.*?))?\s*{_SIDE}?\s*$")
_BOXED_ASCII = re.compile(r"^\s*(?P<side>[|?]|\ufffd{1,3}) (?P<inner>.{60,}?)\s*(?P=side)\s*$")
_FRAME = r'File "[^"\n]{1,300}", line \d+,? in '
_RAISED = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Group|Timeout)(?:\([\w.]+\))?"
_HEADER = r"Traceback \(most recent call last\)"
_CHAINING = (
    r"The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:"
)
_FRAMES = re.compile(_FRAME)
_LOST = re.compile(
    rf"(?P<before>\s*(?={_HEADER}|{_CHAINING}|(?:Current thread|Thread) 0x[\da-f]+))"
    rf"|(?P<after>{_HEADER}:|\(most recent call first\):|{_CHAINING})"
    rf"|\s*(?P<frame>{_FRAME}[^\s\"]+)\s*"
)
# After the code of the last frame; "raise ValueError: " would be no Python.
_EXCEPTION = re.compile(rf"(?:(?<!\braise)(?<!\bexcept)\s+|(?<=[)\]}}'\"]))(?={_RAISED}(?::\s|$))")
_ESCAPED = re.compile(r"\\+(?:r\\+)?n")

# As Python's json loggers, structlog, loguru, Ray, docker, Elastic, Google and OpenTelemetry call them.
_JSON_LEVELS = ("level", "levelname", "severity", "log.level", "severityText", "lvl", "log_level")
_JSON_TEXTS = ("message", "msg", "event", "text", "log", "textPayload", "body", "content")
_JSON_TRACEBACKS = (
    "exc_info",
    "exc_text",
    "exception",
    "traceback",
    "stack_trace",
    "error.stack_trace",
    "stack",
    "exc",
)
_REFUSAL = re.compile(r"\{\s*['\"](?:error|object)['\"]\s*:\s*(?:\{|['\"]error['\"]).*\}")
# A line of an answer that is printed over several.
_REFUSAL_FIELD = re.compile(r"\s*\"(?:message|detail|msg)\": (?P<text>\"[^\n]{16,}\"),?\s*")
_REFUSAL_CLASS = re.compile(r"[A-Z]\w*(?:Error|Exception)")


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes:
        number: Counted from 1, by newlines: the states of a progress bar share one, and what a JSON record stands for.
        text: Without the prefixes of launchers and loggers; indentation stays.
        printed: With them.
        process: Who wrote it, as far as launchers say.
        level: ``ERROR`` and so on, where a logger said so.
        stamped: Whether it has a time.
        boxed: Whether it stood in a box, as rich draws them.
        bar: Whether it is nothing but a progress bar.
    """

    number: int
    text: str
    printed: str
    process: str = ""
    level: str = ""
    stamped: bool = False
    boxed: bool = False
    bar: bool = False


def clean(number: int, raw: str) -> Iterator[Line]:
    """Yield the lines that a raw one shows, one by one: more than one where carriage returns are in it, JSON, or
    what was printed as several lines."""
    if "\r" not in raw:
        yield from _lines(number, raw)
        return
    shown = [part for part in raw.split("\r") if part and not ("%|" in part and part.endswith("]"))]
    if shown:
        yield from (line for part in shown for line in _lines(number, part))
    else:
        yield Line(number, "", raw[-_LONGEST:], bar=bool(raw.strip()))


def _lines(number: int, raw: str, process: str = "", level: str = "") -> Iterator[Line]:
    raw = raw[: _LONGEST_RUN_TOGETHER if ", line " in raw else _LONGEST].replace("\0", "")
    if "\x1b" in raw or ("m" in raw and "[" in raw):
        raw = _COLOUR.sub("", raw)
    found = without_prefixes(_REPEATED.sub("", raw) if "across cluster]" in raw else raw)
    found = replace(found, number=number, process=process + found.process, level=found.level or level)
    is_json = ("{" in found.text and "}" in found.text) or '": "' in found.text
    records = _read_json(found.text) if is_json else None
    if records is not None:
        for record_level, text in records:
            yield from _lines(number, text, found.process, record_level or found.level)
        return
    for place, text in enumerate(restored(found.text)):
        printed = text if place else raw if text == found.text else raw[: raw.find(found.text)] + text
        yield replace(found, text=text, printed=printed[:_LONGEST], bar=not text and "%|" in raw)


def without_prefixes(raw: str) -> Line:
    """Return a line without colours, its text without prefixes."""
    text, process, level, stamped = raw, "", "", False
    for _ in range(_MOST_PREFIXES):
        if "%|" in text or "it [" in text or "% Completed |" in text:
            text = _BAR.sub("", text)
        found = _PREFIX.match(text)
        if found is None:
            break
        if found["process"]:
            process += found["process"].rstrip(": ")
        elif found["record"]:
            initial = found["ray"] or (found["glog"] or "").lstrip("[")[:1]
            named = found["bracketed"] or found["level"] or found["lower"] or found["slurm"] or found["logfmt"]
            level = named.upper() if named else _INITIALS[initial]
        elif found["stamp"]:
            stamped = True
        text = text[found.end() :]
    if text[2:4] == "**":
        text = _MARKDOWN.sub(r"\g<name>:", text)
    boxed = _BOXED.match(text) or (_BOXED_ASCII.match(text) if text.rstrip()[-1:] in ("|", "?", "\ufffd") else None)
    text = (boxed["inner"] or "") if boxed else text
    return Line(0, text, raw, process, level, stamped, boxed is not None)


def restored(text: str) -> list[str]:
    """Return the lines that a text was: itself alone, where it has lost none."""
    if '", line ' not in text and '\\", line ' not in text:
        return [text]
    if "\\n" in text:
        unescaped = re.sub(r"\\+(['\"])", r"\1", _ESCAPED.sub("\n", text))
        return [line for part in unescaped.split("\n") for line in restored(part)]
    frames = list(_FRAMES.finditer(text))
    if not frames or (len(frames) == 1 and re.fullmatch(rf"\s*{_FRAME}\S.*", text) and not _EXCEPTION.search(text)):
        return [text]
    lines = []
    for part in _LOST.sub(_with_ends, text).split("\n"):
        within = part.startswith("    ") and _EXCEPTION.search(part, 3)
        lines += [part[: within.start()], part[within.end() :]] if within else [part]
    return [line for line in lines if line.strip()]


def _with_ends(found: re.Match[str]) -> str:
    if found["frame"]:
        return f"\n  {found['frame']}\n    "
    return f"{found['after']}\n" if found["after"] else "\n"


# -- records in JSON


def _read_json(text: str) -> list[tuple[str, str]] | None:
    """Return level and text of each line that a record, or a line of one, stands for; None of what isn't a record."""
    if (field := _REFUSAL_FIELD.fullmatch(text)) and isinstance(said := _parse(field["text"], json.loads), str):
        return [("", f"the request failed: {' '.join(said.split())}")]
    if body := _REFUSAL.search(text):
        plain = re.sub(r"\\+(['\"])", r"\1", body[0])  # within a repr its quotes are escaped
        readings = ((parse, one) for one in (body[0], plain) for parse in (json.loads, ast.literal_eval))
        refusal = _read_refusal(next(filter(None, (_parse(one, parse) for parse, one in readings)), None))
        if refusal and not re.search(r"\w(?:Error|Exception): ", text[: body.start()]):
            return [("ERROR", refusal)]
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return None
    record = _parse(text, json.loads)
    if not isinstance(record, dict):
        return None
    inner = record.get("record")  # loguru's, beside the text that it made of it
    records = [record, inner] if isinstance(inner, dict) else [record]
    level = _read_level(next((one[key] for one in records for key in _JSON_LEVELS if key in one), ""))
    texts = [one[key] for one in records for key in _JSON_TEXTS if isinstance(one.get(key), str)][:1]
    if "Traceback (" not in "".join(texts):
        texts += [record[key] for key in _JSON_TRACEBACKS if isinstance(record.get(key), str)][:1]
    return [(level, line) for one in texts for line in one.rstrip("\n").split("\n")] or None


def _parse(text: str, parse: Callable[[str], Any]) -> Any:
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return parse(text)
    return None


def _read_refusal(body: Any) -> str | None:
    """Read an OpenAI-compatible server's answer: its exception's class and message, as Python prints them."""
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    kind, message = str(error.get("type")), " ".join(error["message"].split())
    return f"{kind}: {message}" if _REFUSAL_CLASS.fullmatch(kind) else message


def _read_level(level: Any) -> str:
    name = str(level.get("name", "")) if isinstance(level, dict) else str(level)
    return {"WARN": "WARNING", "ERR": "ERROR", "FATAL": "CRITICAL"}.get(name.upper(), name.upper())
