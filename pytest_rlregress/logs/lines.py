"""Reads a line of a log as its writer meant it: without colours, progress bars, prefixes of launchers and loggers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_rlregress.logs import json_records
from pytest_rlregress.logs.ansi import SEQUENCE
from pytest_rlregress.logs.line_ends import restored
from pytest_rlregress.logs.prefixes import without_prefixes

_LONGEST, _LONGEST_RUN_TOGETHER = 8000, 100_000
# Also where the escape character got lost on the way, or is written out: logs of CI, of notebooks, of syslog.
_COLOUR = re.compile(
    rf"{SEQUENCE}|(?:\^\[|[␛←\ufffd\x9b]|\\(?:x1b|033|u001b|e)|\#033)\[[0-?]*[ -/]*[@-~]"
    r"|\??\[(?:\d{1,3}(?:;\d{1,3})*)m"
)
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")


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
    """The lines that a raw one shows, one after the other: more than one where carriage returns are in it, JSON, or
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
    process, level = process + found.process, found.level or level
    is_json = ("{" in found.text and "}" in found.text) or '": "' in found.text
    records = json_records.read(found.text) if is_json else None
    if records is not None:
        for record_level, text in records:
            yield from _lines(number, text, process, record_level or level)
        return
    for place, text in enumerate(restored(found.text)):
        printed = text if place else raw if text == found.text else raw[: raw.find(found.text)] + text
        bar = not text and "%|" in raw
        yield Line(number, text, printed[:_LONGEST], process, level, found.stamped, found.boxed, bar)
