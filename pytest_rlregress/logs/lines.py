"""Reads one line of a log as its writer meant it: without colours, progress bars, prefixes of launchers and loggers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_rlregress.logs.ansi import SEQUENCE

_LONGEST = 8000
# Also where the escape character got lost on the way, as in logs of CI and of notebooks.
_COLOUR = re.compile(rf"{SEQUENCE}|(?:\^\[|␛)\[[0-?]*[ -/]*[@-~]|\[(?:\d{{1,3}}(?:;\d{{1,3}})*)m")
# A bar that ended in no newline; what was printed next stands right behind it.
_BAR = re.compile(r"^[^|]{0,200}\d+%\|[^|]*\|[^\[]{0,80}\[[^\]]*\]")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")

_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LEVELS = "TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL"
_PREFIX = re.compile(
    rf"""
    (?P<process>
        \((?:[^()]*\bpid=\d+[^()]*|raylet[^()]*|autoscaler[^()]*|gcs_server[^()]*)\)[ ]?   # Ray, vLLM
      | \[(?:raylet|gcs_server|(?:rank|default)\d+|\d+,\d+)\](?:<std(?:out|err)>)?:?[ ]?     # Ray, torchrun, mpirun
      | [A-Z][a-z]{{2}}[ ]{{1,2}}\d{{1,2}}[ ]\d\d:\d\d:\d\d[ ][\w.-]+[ ][\w./-]+\[\d+\]:[ ]?  # journald
      | [\w.-]+-\d+[ ]+\|[ ]                                                                 # docker compose
      | \d{{1,4}}:[ ]                                                                        # srun --label
      | wandb:[ ]
    )
  | (?P<record>
        (?P<glog>\[?[DIWEFC]\d{{4}}[ ]\d\d:\d\d:\d\d[.\d]*[ ]+(?:\d+[ ]+)?[\w./-]+:\d+\][ ]?)
      | \[{_DATE}[ ](?P<ray>[DIWEFC])[ ]\d+[ ]\d+\][ ](?:\([\w ]+\)[ ])?[\w./-]+:\d+:[ ]
      | \[(?P<bracketed>{_LEVELS})(?:\|[\w./-]+:\d+)?\](?:[ ]{_DATE})?(?:[ ]>>|:|[ ]-)?[ ]?
      | (?P<level>{_LEVELS})(?::[\w.]+:|[ ]*\|[ ]|[ ]-[ ]|:?[ ]+(?=\S)|:?$)
        (?:\d\d-\d\d[ ]\d\d:\d\d:\d\d[ ])?
        (?:\[[\w./-]+:\d+\](?:[ ]|$)|[\w./-]+:\d+\](?:[ ]|$)|[\w.<>]+:[\w.<>]+:\d+[ ]-[ ])?
    )
  | (?P<stamp>
        \[?(?:{_DATE}|\d\d/\d\d/\d\d(?:\d\d)?[ ]\d\d:\d\d:\d\d|\d\d:\d\d:\d\d(?:[.,]\d+)?(?=[ \]]))\]?
        (?:[ ]std(?:out|err)[ ][FP])?(?:[ ][|-](?=[ ]))?[ ]?
        (?:(?:\[[\w.]+\]|[\w.-]+[ ]-[ ]|[\w.-]+[ ])?[ ]*(?=\[?(?:{_LEVELS})\b))?
    )
  | (?P<frame>[ ]{{2,}}\|[ ]|E[ ]{{3}})                                                     # exception groups, pytest
    """,
    re.VERBOSE,
)
_MOST_PREFIXES = 8
_INITIALS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL", "C": "CRITICAL"}


@dataclass(frozen=True)
class Line:
    """A line of a log.

    Attributes:
        number: Counted from 1, by newlines: the states of a progress bar share one.
        text: Without the prefixes of launchers and loggers; indentation stays.
        printed: With them.
        process: Who wrote it, as far as launchers say.
        level: ``ERROR`` and so on, where a logger said so.
        stamped: Whether it has a time.
        bar: Whether it is nothing but a progress bar.
    """

    number: int
    text: str
    printed: str
    process: str = ""
    level: str = ""
    stamped: bool = False
    bar: bool = False


def clean(number: int, raw: str) -> Iterator[Line]:
    """The lines that a raw one shows, one after the other: more than one where carriage returns are in it."""
    if "\r" not in raw:
        yield _line(number, raw)
        return
    shown = [part for part in raw.split("\r") if part and not ("%|" in part and part.endswith("]"))]
    if shown:
        yield from (_line(number, part) for part in shown)
    else:
        yield Line(number, "", raw[-_LONGEST:], bar=bool(raw.strip()))


def _line(number: int, raw: str) -> Line:
    raw = raw[:_LONGEST].replace("\0", "")
    if "\x1b" in raw or ("m" in raw and "[" in raw):
        raw = _COLOUR.sub("", raw)
    text, process, level, stamped = raw, "", "", False
    if "across cluster]" in text:
        text = _REPEATED.sub("", text)
    for _ in range(_MOST_PREFIXES):
        if "%|" in text:
            text = _BAR.sub("", text)
        found = _PREFIX.match(text)
        if found is None:
            break
        if found["process"]:
            process += found["process"].rstrip(": ")
        elif found["record"]:
            initial = found["ray"] or (found["glog"] or "").lstrip("[")[:1]
            level = found["bracketed"] or found["level"] or _INITIALS[initial]
        elif found["stamp"]:
            stamped = True
        text = text[found.end() :]
    return Line(number, text, raw, process, level, stamped, bar=not text and "%|" in raw)
