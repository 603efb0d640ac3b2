"""The evidence of each failing test: read from its record, cut to what a page can hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from pytest_rlregress.commands.report.judgement import next_commands
from pytest_rlregress.commands.report.judgement.facts import Change, Night, Point
from pytest_rlregress.commands.report.page import tables
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.logs import ansi
from pytest_rlregress.records.record_types import RecordedTest

if TYPE_CHECKING:
    from pytest_rlregress.commands.report.history.store import History

#: Characters of one test's texts, of all together, and of each once those are spent.
ONE, ALL, SPENT = 20_000, 500_000, 1_500
#: Failing tests with evidence of their own.
MOST = 200
#: Runs in a test's own course.
COURSE = 15

#: As pytest, and the containment, begin a titled part of a report.
_TITLE = re.compile(r"^-{4,} (?P<title>\S.*?) -{4,}$", re.MULTILINE)


@dataclass(frozen=True)
class ShownText:
    """A titled text; ``cut`` are the characters that it lacks at its beginning."""

    title: str
    text: str
    cut: int


@dataclass(frozen=True)
class FailingTest:
    """One failing test on one platform, with its evidence: its entry in the record, its last runs, what to run."""

    anchor: str
    test: str
    point: Point
    change: Change | None
    known: Failure | None
    entry: RecordedTest
    parts: tuple[ShownText, ...]
    course: tuple[tuple[str, int], ...]
    again: str


def cases(night: Night, history: History, catalogue: Mapping[str, Failure]) -> tuple[list[FailingTest], int]:
    """Collect the failing tests of a night, the gravest first, and count those that a page cannot hold."""
    found, left = [], ALL
    every = tables.failing(night)
    for number, (point, test, change) in enumerate(every[:MOST], 1):
        entry = history.entry(point.run, test)
        parts = _parts(entry.message, entry.trace, ONE if left > 0 else SPENT)
        left -= sum(len(part.text) for part in parts)
        timeline = history.timelines(point.run.platform)[test]
        past = [one.word for one in timeline if one.run.start <= point.run.start]
        course = tuple((word, len(list(same))) for word, same in groupby(past[-COURSE:]))
        known = catalogue.get(point.failure or "")
        again = shlex.join(next_commands.again(point.run, [test]))
        found.append(FailingTest(f"evidence-{number}", test, point, change, known, entry, parts, course, again))
    return found, max(0, len(every) - MOST)


def _parts(message: str, trace: str, room: int) -> tuple[ShownText, ...]:
    """Split a trace at its titles; of long parts keep the end, which says what went wrong."""
    texts, title, begin = [], "trace", 0
    trace = ansi.stripped(trace)
    for found in _TITLE.finditer(trace):
        texts.append((title, trace[begin : found.start()]))
        title, begin = found["title"], found.end()
    texts.append((title, trace[begin:]))
    if message and message not in trace:
        texts.insert(0, ("message", ansi.stripped(message)))
    texts = [(title, text.strip("\n")) for title, text in texts if text.strip()]
    return tuple(_cut(title, text, room // len(texts)) for title, text in texts)


def _cut(title: str, text: str, room: int) -> ShownText:
    """Keep the last lines that fit."""
    if len(text) <= room:
        return ShownText(title, text, 0)
    kept = text[-room:]
    kept = kept.partition("\n")[2] or kept
    return ShownText(title, kept, len(text) - len(kept))
