"""Build the page's table of failures by hardware, and the evidence of each failing test; the template lays them out."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from pytest_rlregress.failures import fidelity
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.changes import QUIET, WORSE, Change, Kind
from pytest_rlregress.records.history import History, Point, read_entry
from pytest_rlregress.records.night import Night, PlatformNight
from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.records.stories import make_rerun
from pytest_rlregress.util.text import strip_escapes

#: Row of the table for tests that are a side of no documented failure.
OTHER = "tests of no documented failure"
#: Failing tests with evidence of their own.
MOST_CASES = 200
#: Characters of the texts of one test, and of all together.
MOST_OF_ONE, MOST_OF_ALL = 20_000, 1_000_000
_LAST_RUNS = 15

_ORDER = list(Kind)
#: As pytest, and the containment, begin a titled part of a report.
_TITLE = re.compile(r"^-{4,} (?P<title>\S.*?) -{4,}$", re.MULTILINE)

#: Anchor of the evidence on a test of a platform.
Anchors = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class SideCell:
    """One failure's tests of one side in one platform.

    Attributes:
        counts: Each verdict, how many tests have it, and the anchor of the first one's evidence, "" without.
        kinds: Those that are worth a word.
    """

    name: str
    counts: tuple[tuple[str, int, str], ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True)
class TableRow:
    """One failure on every platform: reproduces and guards, or one cell for OTHER; None where it did not run.

    ``fidelity`` is how real its tests were, "" where no record says.
    """

    failure: str
    title: str
    fidelity: str
    platforms: tuple[tuple[str, tuple[SideCell, ...] | None], ...]

    @property
    def urgency(self) -> int:
        """Return the place of its gravest kind; after those come failing tests, then all else."""
        sides = [side for _, platform in self.platforms for side in platform or ()]
        kinds = [_ORDER.index(kind) for side in sides for kind in side.kinds if kind is not Kind.KNOWN]
        failing = any(rank(word) is Rank.FAILING for side in sides for word, _, _ in side.counts)
        return min(kinds, default=len(_ORDER) - failing)

    @property
    def expected(self) -> bool:
        """Return whether nothing in it changed or fails."""
        return self.urgency == len(_ORDER)


def make_rows(night: Night, titles: Mapping[str, str], anchors: Anchors) -> list[TableRow]:
    """Build the table of failures by platform: what needs a look first, then by name."""
    tests: dict[tuple[str, str, str], dict[str, Change | None]] = defaultdict(dict)
    how_real: dict[str, set[tuple[str, str]]] = defaultdict(set)  # one that differs by platform counts for each
    for platform in night.platforms:
        if not platform.runs:
            continue
        changes = {change.test: change for change in platform.changes}
        gone = {change.test: change.latest for change in platform.changes if change.now is None}
        for test, point in {**gone, **platform.results}.items():
            failure = point.failure or OTHER
            tests[platform.name, failure, point.side][test] = changes.get(test)
            if test in platform.results and point.fidelity:
                how_real[failure].add((test, point.fidelity))
    rows = [
        TableRow(
            failure,
            titles.get(failure, ""),
            fidelity.summary(Counter(word for _, word in how_real[failure])) if failure != OTHER else "",
            tuple((platform.name, _make_sides(platform, failure, tests, anchors)) for platform in night.platforms),
        )
        for failure in sorted({failure for _, failure, _ in tests})
    ]
    return sorted(rows, key=lambda row: (row.urgency, row.failure == OTHER, row.failure))


def _make_sides(
    platform: PlatformNight,
    failure: str,
    tests: Mapping[tuple[str, str, str], Mapping[str, Change | None]],
    anchors: Anchors,
) -> tuple[SideCell, ...] | None:
    if not platform.runs:
        return None
    sides = []
    for side in ("",) if failure == OTHER else fidelity.SIDES:
        changes = tests.get((platform.name, failure, side), {})
        by_word: dict[str, list[str]] = defaultdict(list)
        for test in changes:
            by_word[platform.results[test].word if test in platform.results else "did not run"].append(test)
        counts = tuple(
            (word, len(some), next(filter(None, (anchors.get((platform.name, test)) for test in some)), ""))
            for word, some in sorted(by_word.items(), key=lambda item: (-rank(item[0]), item[0]))
        )
        told = {one.kind for one in changes.values() if one and (one.fails or one.kind not in QUIET)}
        sides.append(SideCell(side, counts, tuple(kind for kind in Kind if kind in told)))
    return tuple(sides)


# -- evidence ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailingTest:
    """One failing test on one platform, with its evidence.

    Attributes:
        entry: What its record says.
        parts: Titled texts, each with how many characters it lacks at its beginning.
        course: The words of its last runs, each with how many runs in a row.
        again: The command that runs it again.
    """

    anchor: str
    test: str
    point: Point
    change: Change | None
    known: Failure | None
    entry: RecordedTest
    parts: list[tuple[str, str, int]]
    course: list[tuple[str, int]]
    again: str


def find_cases(night: Night, history: History, catalogue: Mapping[str, Failure]) -> tuple[list[FailingTest], int]:
    """Collect the failing tests of a night, the gravest first, and count those that a page cannot hold."""
    failing = []
    for platform in night.platforms:
        changes = {change.test: change for change in platform.changes}
        for test, point in platform.results.items():
            change = changes.get(test)
            if point.fails or (change and change.kind in WORSE):
                place = _ORDER.index(change.kind) if change else len(_ORDER)
                failing.append(((place, platform.name, test), point, change))
    failing.sort(key=lambda one: one[0])
    room = min(MOST_OF_ONE, MOST_OF_ALL // max(1, min(len(failing), MOST_CASES)))
    found = []
    for number, ((_, platform_name, test), point, change) in enumerate(failing[:MOST_CASES], 1):
        entry = read_entry(point.run, test)
        timeline = history.timelines[platform_name][test]
        past = [one.word for one in timeline if one.run.start <= point.run.start]
        found.append(
            FailingTest(
                f"evidence-{number}",
                test,
                point,
                change,
                catalogue.get(point.failure),
                entry,
                split_trace(entry.message, entry.trace, room),
                [(word, len(list(same))) for word, same in groupby(past[-_LAST_RUNS:])],
                shlex.join(make_rerun(point.run, [test])),
            )
        )
    return found, max(0, len(failing) - MOST_CASES)


def split_trace(message: str, trace: str, room: int) -> list[tuple[str, str, int]]:
    """Split a trace at its titles; of long parts keep the last lines, which say what went wrong."""
    trace = strip_escapes(trace)
    first, *rest = _TITLE.split(trace)
    texts = [("trace", first), *zip(rest[::2], rest[1::2], strict=True)]
    if message and message not in trace:
        texts.insert(0, ("message", strip_escapes(message)))
    texts = [(title, text.strip("\n")) for title, text in texts if text.strip()]
    parts = []
    for title, text in texts:
        kept = text[-(room // len(texts)) :]
        if len(kept) < len(text):
            kept = kept.partition("\n")[2] or kept
        parts.append((title, kept, len(text) - len(kept)))
    return parts
