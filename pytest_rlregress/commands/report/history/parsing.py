"""Read one file of a history: the record of a run, or the journal of one that has not ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from sys import intern

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.report.judgement.facts import Point, RecordedRun
from pytest_rlregress.failures.verdicts import rank
from pytest_rlregress.goldens import step_numbers
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.records.selection import is_quick
from pytest_rlregress.stack.locks import Lock

#: A note is one line; the whole text stays in the record.
NOTE_CHARACTERS = 300
_YEAR_9999 = 253_370_764_800


@dataclass(frozen=True)
class ParsedFile:
    """A file of a history.

    Attributes:
        points: By test; the worst of those that have the same name.
        stop: Seconds since 1970.
        remark: How far the run of a journal has come; "" for a record.
    """

    run: RecordedRun
    points: Mapping[str, Point]
    stop: float
    remark: str


def parse(path: Path) -> ParsedFile:
    """Read a record, or the journal of a run.

    Raises:
        RecordError: The file isn't a record or is incomplete; the message names it.
    """
    record = reader.read(path)
    tests, extra, hardware = record.results.tests, record.results.extra, record.results.extra.hardware
    start = _seconds(record.results.summary.start, path, "began")
    stop = _seconds(record.results.summary.stop, path, "ended")
    worst = worst_by_name(tests)
    words = {name: intern(test.word) for name, test in worst.items()}
    asked = tuple(extra.run.selection)
    quick = ", quick" if is_quick(asked) else ""
    run = RecordedRun(
        id=record.report_id,
        path=path,
        start=start,
        seconds=stop - start if stop >= start else None,
        platform=(hardware.profile or "unknown") + quick,
        state=extra.state,
        devices=tuple(device.name for device in hardware.devices),
        driver=hardware.driver,
        commit=extra.git.commit if extra.git else None,
        dirty=extra.git is not None and extra.git.dirty,
        lock=_lock(tuple(extra.stack.requirements)),
        extra=extra,
        asked=asked,
        numbers=step_numbers.read_numbers([(test.name, test.extra.measured) for test in tests]),
    )
    points = {intern(name): _point(run, words[name], test) for name, test in worst.items()}
    return ParsedFile(run, points, stop, _remark(run, words.values()))


def _remark(run: RecordedRun, words: Collection[str]) -> str:
    """Say of a journal how far its run has come; "" for a record."""
    if not reader.is_journal(run.path):
        return ""
    ran = sum(word not in ("pending", "interrupted") for word in words)
    how = "still goes on, as far as can be told" if run.state == "running" else "was killed"
    return f"its run {how}: {ran} of {len(words)} tests have a result"


def worst_by_name(tests: Iterable[RecordedTest]) -> dict[str, RecordedTest]:
    """Key tests by name; of those with the same name the worst counts, or the first."""
    found: dict[str, RecordedTest] = {}
    for test in tests:
        if test.name not in found or rank(test.word) > rank(found[test.name].word):
            found[test.name] = test
    return found


def _point(run: RecordedRun, word: str, test: RecordedTest) -> Point:
    extra = test.extra
    failure, side = extra.failure and intern(extra.failure), extra.side and intern(extra.side)
    note = extra.note or test.message
    if note:
        note = note.strip().partition("\n")[0]
        note = intern(note if len(note) <= NOTE_CHARACTERS else f"{note[: NOTE_CHARACTERS - 1]}…")
    return Point(
        run,
        word,
        failure or None,
        side or None,
        note,
        bool(test.flaky),
        intern(extra.components),
        intern(extra.fidelity),
        intern(extra.subject),
    )


def _seconds(milliseconds: int, path: Path, happened: str) -> float:
    if 0 <= milliseconds / 1000 < _YEAR_9999:
        return milliseconds / 1000
    raise reader.RecordError(f"{path}: does not say when its run {happened}: {milliseconds} isn't a time")


@lru_cache(maxsize=1024)
def _lock(requirements: tuple[str, ...]) -> Lock:
    """Read what was installed; a package from a folder, which may be another machine's, goes by the folder's name."""
    return Lock({_package(line): line for line in requirements})


def _package(line: str) -> str:
    if line.startswith("-e "):
        return canonicalize_name(Path(line[3:]).name)
    return canonicalize_name(line.partition(" @ ")[0].partition("==")[0])
