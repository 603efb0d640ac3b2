"""Read one file of a history: the record of a run, or the journal of one that has not ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import Any, TypeVar, get_args

import msgspec
from packaging.utils import canonicalize_name

from pytest_rlregress.goldens import step_numbers
from pytest_rlregress.records import reader
from pytest_rlregress.records.journal import SUFFIX
from pytest_rlregress.records.reader import State
from pytest_rlregress.report.judgement.facts import RecordedRun, Result
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.verdicts import rank

T = TypeVar("T")

#: A note is one line; the whole text stays in the record.
NOTE_CHARACTERS = 300
_YEAR_9999 = 253_370_764_800


class _Extra(msgspec.Struct):
    verdict: str | None = None
    failure: str | None = None
    side: str | None = None
    note: str | None = None
    measured: dict[str, Any] | None = None


class _Test(msgspec.Struct, rename="camel"):
    name: str
    duration: float
    status: str
    raw_status: str | None = None
    message: str | None = None
    flaky: bool = False
    extra: _Extra | None = None


class _Results(msgspec.Struct):
    tests: list[_Test]
    summary: dict[str, Any]
    extra: dict[str, Any]


class _Record(msgspec.Struct, rename="camel"):
    """The part of a record that a history is made of: docs/record.md has its keys."""

    report_id: str
    results: _Results


_DECODER = msgspec.json.Decoder(_Record)


@dataclass(frozen=True)
class ParsedFile:
    """A file of a history.

    Attributes:
        results: By test; the worst of those that have the same name.
        stop: Seconds since 1970.
        remarks: What is odd about the file.
    """

    run: RecordedRun
    results: Mapping[str, Result]
    stop: float
    remarks: tuple[str, ...]


def parse(path: Path) -> ParsedFile:
    """Read a record, or the journal of a run.

    Raises:
        RecordError: It is none, or not whole; the message names the file.
    """
    try:
        return _parsed(_quickly(path) or msgspec.convert(reader.whole(path), _Record), path)
    except reader.RecordError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise reader.RecordError(f"{path}: no record of a run: {type(error).__name__}: {error}") from None


def is_journal(path: Path) -> bool:
    """Whether a file's name says that it is the journal of a run that has not ended, or was killed."""
    return path.name.endswith(SUFFIX)


def printable(value: object) -> str:
    """A text that can be stored and printed: what a test printed may hold halves of characters."""
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def worst_by_name(tests: Iterable[tuple[str, str, T]]) -> dict[str, T]:
    """Key tests, given as name, word and value, by name; of those with the same name the worst counts, or the first."""
    found: dict[str, tuple[str, T]] = {}
    for name, word, value in tests:
        if name not in found or rank(word) > rank(found[name][0]):
            found[name] = word, value
    return {name: value for name, (_, value) in found.items()}


def _quickly(path: Path) -> _Record | None:
    """A record that is as it should be, in a third of the time that ``reader.whole`` takes; None for any other file."""
    if is_journal(path):
        return None
    try:
        record = _DECODER.decode(path.read_bytes())
        extra = record.results.extra
        sound = extra["format"] <= reader.FORMAT and extra["stack"]["requirements"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return record if sound else None


def _parsed(record: _Record, path: Path) -> ParsedFile:
    tests, extra = record.results.tests, record.results.extra
    start, stop = (_seconds(record.results.summary.get(name), path, name) for name in ("start", "stop"))
    state = reader.state({"extra": extra})
    if state not in get_args(State):
        raise ValueError(f"its state is {state!r}, none of {', '.join(get_args(State))}")
    found = ((intern(printable(test.name)), _result(test)) for test in tests)
    results = worst_by_name((name, result.word, result) for name, result in found)
    counts = Counter(result.word for result in results.values())
    remarks = []
    if stop < start:
        remarks.append(f"its clock went backwards: it ended {start - stop:g} s before it began")
    if len(results) < len(tests):
        remarks.append(
            f"{len(tests) - len(results)} of its {len(tests)} tests have the name of another: the worst counts"
        )
    if is_journal(path):
        ran = len(results) - counts["pending"] - counts["interrupted"]
        how = "still goes on, as far as can be told" if state == "running" else "was killed"
        remarks.append(f"its run {how}: {ran} of {len(results)} tests have a result")
    hardware, git, how_run = (extra.get(name) or {} for name in ("hardware", "git", "run"))
    run = RecordedRun(
        id=record.report_id,
        path=path,
        start=start,
        seconds=stop - start if stop >= start else None,
        platform=str(hardware.get("profile") or "unknown"),
        state=state,
        devices=tuple(str(device["name"]) for device in hardware.get("devices") or ()),
        driver=_text(hardware.get("driver")),
        commit=_text(git.get("commit")),
        dirty=bool(git.get("dirty")),
        lock=_lock(tuple(extra["stack"]["requirements"])),
        components=dict(extra["stack"].get("versions") or {}),
        selection=tuple(map(str, how_run.get("arguments") or ())),
        counts=counts,
        numbers=step_numbers.read_numbers([(test.name, test.extra.measured) for test in tests if test.extra]),
        extra=extra,
    )
    return ParsedFile(run, results, stop, tuple(remarks))


def _result(test: _Test) -> Result:
    extra = test.extra or _Extra()
    seconds = test.duration / 1000
    note = extra.note or test.message or ""
    if note:
        note = printable(note.strip().partition("\n")[0])
        note = note if len(note) <= NOTE_CHARACTERS else f"{note[: NOTE_CHARACTERS - 1]}…"
    return Result(
        intern(printable(reader.word_of(test.raw_status or test.status, extra.verdict))),
        seconds if math.isfinite(seconds) else 0.0,
        extra.failure and intern(printable(extra.failure)),
        extra.side and intern(printable(extra.side)),
        intern(note),
        test.flaky,
    )


def _seconds(milliseconds: object, path: Path, name: str) -> float:
    if isinstance(milliseconds, (int, float)) and 0 <= milliseconds / 1000 < _YEAR_9999:
        return milliseconds / 1000
    moment = {"start": "began", "stop": "ended"}[name]
    raise reader.RecordError(f"{path}: does not say when its run {moment}: results.summary.{name} is {milliseconds!r}")


@lru_cache(maxsize=1024)
def _lock(requirements: tuple[str, ...]) -> Lock:
    """What was installed; a package from a folder, which may be another machine's, goes by the folder's name."""
    return Lock({_package(line): line for line in requirements})


def _package(line: str) -> str:
    if line.startswith("-e "):
        return canonicalize_name(Path(line[3:]).name)
    return canonicalize_name(line.partition(" @ ")[0].partition("==")[0])


def _text(value: object) -> str | None:
    return None if value is None else str(value)
