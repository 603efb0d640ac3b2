"""The evidence of each failing test: read from its record, cut to what a page can hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from pytest_rlregress.catalogue import Failure
from pytest_rlregress.logs import ansi
from pytest_rlregress.report.judgement import upgrades
from pytest_rlregress.report.judgement.facts import Change, Night, Point
from pytest_rlregress.report.page import formatting, tables

if TYPE_CHECKING:
    from pytest_rlregress.report.history.store import History

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
    """One failing test on one platform, with its evidence."""

    anchor: str
    platform: str
    test: str
    point: Point
    change: Change | None
    marks: str
    signal: str
    known: Failure | None
    parts: tuple[ShownText, ...]
    memory: tuple[tuple[str, str], ...]
    attempts: int
    course: tuple[tuple[str, int], ...]
    again: str


def cases(night: Night, history: History, catalogue: Mapping[str, Failure]) -> tuple[list[FailingTest], int]:
    """Collect the failing tests of a night, the gravest first, and count those that a page cannot hold."""
    found, left = [], ALL
    every = list(tables.failing(night))
    timelines = {platform: history.timelines(platform) for platform in {one.name for one, *_ in every}}
    for number, (platform, point, test, change) in enumerate(every[:MOST], 1):
        entry = history.entry(point.run, test)
        parts = _parts(entry.message, entry.trace, ONE if left > 0 else SPENT)
        left -= sum(len(part.text) for part in parts)
        past = [one.word for one in timelines[platform.name][test] if one.run.start <= point.run.start]
        found.append(
            FailingTest(
                f"evidence-{number}",
                platform.name,
                test,
                point,
                change,
                tables.marks(change.kind if change else None, point.word),
                formatting.signal(point.note, entry.message),
                catalogue.get(point.failure or ""),
                parts,
                tuple(
                    (name, formatting.size(size))
                    for name, size in sorted(entry.extra.peak_memory.items(), key=lambda x: -x[1])
                ),
                1 + entry.retries,
                tuple((word, len(list(same))) for word, same in groupby(past[-COURSE:])),
                shlex.join(upgrades.again(point.run, [test])),
            )
        )
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
    share = room // max(1, len(texts))
    long = sum(len(text) > share for _, text in texts)
    spare = sum(max(0, share - len(text)) for _, text in texts) // max(1, long)
    return tuple(_cut(title, text, share + spare) for title, text in texts)


def _cut(title: str, text: str, room: int) -> ShownText:
    """Keep the last lines that fit."""
    if len(text) <= room:
        return ShownText(title, text, 0)
    kept = text[-room:]
    kept = kept.partition("\n")[2] or kept
    return ShownText(title, kept, len(text) - len(kept))
