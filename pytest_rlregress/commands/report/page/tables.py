"""Build the page's table of failures by hardware; the template lays it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_rlregress.commands.report.judgement.facts import Change, Night, PlatformNight, Point
from pytest_rlregress.commands.report.judgement.kinds import QUIET, WORSE, Kind
from pytest_rlregress.failures import fidelity
from pytest_rlregress.failures.verdicts import Rank, rank

#: Row of the grid for tests that are a side of no documented failure.
OTHER = "tests of no documented failure"

_ORDER = list(Kind)

#: Anchor of the evidence on a test of a platform.
Anchors = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Count:
    """So many tests of a cell with one verdict; ``anchor`` of the first one's evidence, "" without."""

    word: str
    number: int
    anchor: str


@dataclass(frozen=True)
class SideCell:
    """One failure's tests of one side in one platform: ``kinds`` that are worth a word; no counts: none ran."""

    name: str
    counts: tuple[Count, ...]
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
        failing = any(rank(count.word) is Rank.FAILING for side in sides for count in side.counts)
        return min(kinds, default=len(_ORDER) - failing)

    @property
    def expected(self) -> bool:
        """Return whether nothing in it changed or fails."""
        return self.urgency == len(_ORDER)


def grid(night: Night, titles: Mapping[str, str], anchors: Anchors) -> list[TableRow]:
    """Build the grid of failures by platform: what needs a look first, then by name."""
    tests: dict[tuple[str, str, str], dict[str, Change | None]] = defaultdict(dict)
    for platform in night.platforms:
        changes = {change.test: change for change in platform.changes}
        if not platform.runs:
            continue
        for test, point in platform.results.items():
            tests[platform.name, point.failure or OTHER, point.side or ""][test] = changes.get(test)
        for change in platform.changes:
            if change.now is None:
                tests[platform.name, change.latest.failure or OTHER, change.latest.side or ""][change.test] = change
    rows = [
        TableRow(
            failure,
            titles.get(failure, ""),
            fidelity.summary(_words(night, failure)),
            tuple((platform.name, _sides(platform, failure, tests, anchors)) for platform in night.platforms),
        )
        for failure in sorted({failure for _, failure, _ in tests})
    ]
    return sorted(rows, key=lambda row: (row.urgency, row.failure == OTHER, row.failure))


def _words(night: Night, failure: str) -> Counter[str]:
    """Count a failure's tests of this night by how real they were; one that differs by platform counts for each."""
    results = [result for platform in night.platforms for result in platform.results.items()]
    said = {(test, point.fidelity) for test, point in results if point.failure == failure and point.fidelity}
    return Counter(word for _, word in said)


def _sides(
    platform: PlatformNight,
    failure: str,
    tests: Mapping[tuple[str, str, str], Mapping[str, Change | None]],
    anchors: Anchors,
) -> tuple[SideCell, ...] | None:
    if not platform.runs:
        return None
    names = ("",) if failure == OTHER else ("reproduces", "guards")
    return tuple(_side(platform, name, tests.get((platform.name, failure, name), {}), anchors) for name in names)


def _side(platform: PlatformNight, name: str, changes: Mapping[str, Change | None], anchors: Anchors) -> SideCell:
    by_word: dict[str, list[str]] = defaultdict(list)
    for test in changes:
        by_word[platform.results[test].word if test in platform.results else "did not run"].append(test)
    counts = tuple(
        Count(word, len(some), next(filter(None, (anchors.get((platform.name, test)) for test in some)), ""))
        for word, some in sorted(by_word.items(), key=lambda item: (-rank(item[0]), item[0]))
    )
    told = {one.kind for one in changes.values() if one and (one.fails or one.kind not in QUIET)}
    return SideCell(name, counts, tuple(kind for kind in Kind if kind in told))


def failing(night: Night) -> list[tuple[Point, str, Change | None]]:
    """List the tests of this night with evidence to show, the gravest first: result, test, change."""
    found = []
    for platform in night.platforms:
        changes = {change.test: change for change in platform.changes}
        for test, point in platform.results.items():
            change = changes.get(test)
            if point.fails or (change and change.kind in WORSE):
                place = _ORDER.index(change.kind) if change else len(_ORDER)
                found.append(((place, platform.name, test), (point, test, change)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]
