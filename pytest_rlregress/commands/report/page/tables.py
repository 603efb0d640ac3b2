"""Build the rows of the page's tables; the templates lay them out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pytest_rlregress.commands.report.judgement.facts import Change, Night, PlatformNight, Point, RecordedRun
from pytest_rlregress.commands.report.judgement.kinds import QUIET, WORSE, Kind
from pytest_rlregress.commands.report.page import formatting
from pytest_rlregress.commands.report.text import between, told_ends
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

    platform: str
    name: str
    counts: tuple[Count, ...]
    kinds: tuple[Kind, ...]
    marks: str


@dataclass(frozen=True)
class TableRow:
    """One failure on every platform: reproduces and guards, or one cell for OTHER; None where it did not run.

    ``fidelity`` is how real its tests were, "" where no record says.
    """

    failure: str
    title: str
    fidelity: str
    tests: tuple[str, ...]
    platforms: tuple[tuple[str, tuple[SideCell, ...] | None], ...]


def marks(kind: Kind | None = None, word: str = "") -> str:
    """What the page's filter looks a row up by, as words of one attribute."""
    found = []
    if kind:
        found.append(f"kind:{kind.replace(' ', '-')}")
        found += ["any:change"] * (kind not in QUIET) + ["any:worse"] * (kind in WORSE)
    if word:
        found += [f"word:{word.replace(' ', '-')}"] + ["any:failing"] * (rank(word) is Rank.FAILING)
    return " ".join(found)


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
    failures = sorted({failure for _, failure, _ in tests})
    rows = [
        TableRow(
            failure,
            titles.get(failure, ""),
            fidelity.summary(_words(night, failure)),
            tuple(sorted({test for (_, of, _), some in tests.items() if of == failure for test in some})),
            tuple((platform.name, _sides(platform, failure, tests, anchors)) for platform in night.platforms),
        )
        for failure in failures
    ]
    return sorted(rows, key=lambda row: (_urgency(row), row.failure == OTHER, row.failure))


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
        Count(
            word,
            len(some),
            next(filter(None, (anchors.get((platform.name, test)) for test in some)), ""),
        )
        for word, some in sorted(by_word.items(), key=lambda item: (-rank(item[0]), item[0]))
    )
    known = [change for change in changes.values() if change]
    told = {one.kind for one in known if one.fails or one.kind not in QUIET}
    found = {
        *(mark for one in known for mark in marks(one.kind).split()),
        *(mark for word in by_word for mark in marks(word=word).split()),
    }
    return SideCell(platform.name, name, counts, tuple(kind for kind in Kind if kind in told), " ".join(sorted(found)))


def _urgency(row: TableRow) -> int:
    """The place of a row: by the gravest kind in it, then by verdict."""
    sides = [side for _, platform in row.platforms for side in platform or ()]
    kinds = [_ORDER.index(kind) for side in sides for kind in side.kinds if kind is not Kind.KNOWN]
    failing = any(rank(count.word) is Rank.FAILING for side in sides for count in side.counts)
    return min(kinds, default=len(_ORDER) - failing)


@dataclass(frozen=True)
class Changed:
    """A test that changed."""

    change: Change
    before: str
    after: str
    dates: str
    anchor: str
    marks: str


def changed(night: Night, anchors: Anchors) -> tuple[list[Changed], ...]:
    """What changed since a platform's last run; what did earlier and is still bad; what fails as before; new tests."""
    told: tuple[list[Changed], ...] = ([], [], [], [])
    for platform in night.platforms:
        for change in platform.changes if platform.runs else ():
            if change.kind in QUIET and not change.fails:
                continue
            tonight = {run.id for run in platform.runs}
            if change.kind is Kind.KNOWN:
                place = 2
            elif change.kind is Kind.NEW_FAILING and platform.last is None:
                place = 3
            else:
                recent = change.since is None or change.since.run.id in tonight or change.kind is Kind.FLAKE
                place = 0 if recent else 1
            told[place].append(_changed(change, anchors))
    for some in told:
        some.sort(key=lambda row: (_ORDER.index(row.change.kind), row.change.platform, row.change.test))
    return told


def _changed(change: Change, anchors: Anchors) -> Changed:
    never = "not seen" if change.kind is Kind.NEW_FAILING else "never good"
    before = change.before.word if change.before else never
    after = change.now.word if change.now else "did not run"
    return Changed(
        change,
        before,
        after,
        _dates(change),
        anchors.get((change.platform, change.test), ""),
        marks(change.kind, change.now.word if change.now else ""),
    )


def _dates(change: Change) -> str:
    """Since when, in words: ``held until 2026-11-16; regressed since 2026-11-17: 4 runs in 4 nights``."""
    said = []
    if change.kind is Kind.FLAKE:
        return f"{formatting.plural(change.runs, 'bad run')} and a good one in the same night" if change.runs else ""
    if change.before:
        said.append(f"{change.before.word} until {change.before.run.night}")
    if change.since:
        times = f"{formatting.plural(change.runs, 'run')} in {formatting.plural(change.nights, 'night')}"
        said.append(f"{change.since.word} since {change.since.run.night}: {times}")
    return "; ".join(said)


def compared(night: Night) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Each platform that ran: the run before and the last good one, when that was, and what else is installed since."""
    told = []
    for platform in night.platforms:
        if platform.runs:
            ends = {"last run": platform.last, "last good run": platform.last_good}
            told.append((platform.name, [(name, *_since(run, platform)) for name, run in ends.items()]))
    return told


def _since(run: RecordedRun | None, platform: PlatformNight) -> tuple[str, str]:
    """When an earlier run was, and what else is installed since."""
    if run is None:
        return "", ""
    differs = between(run, platform.runs[-1], told_ends(platform.changes))
    return formatting.moment(run.start), differs.replace(" -> ", " → ")


def failing(night: Night) -> list[tuple[Point, str, Change | None]]:
    """Tests of this night with evidence to show, the gravest first: result, test, change."""
    found = []
    for platform in night.platforms:
        changes = {change.test: change for change in platform.changes}
        for test, point in platform.results.items():
            change = changes.get(test)
            if point.fails or (change and change.kind in WORSE):
                place = _ORDER.index(change.kind) if change else len(_ORDER)
                found.append(((place, platform.name, test), (point, test, change)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def about(run: RecordedRun) -> dict[str, Any]:
    """What a record says of machine, call and stack, but for the packages."""
    found = msgspec.to_builtins(run.extra)
    return {name: found[name] for name in ("hardware", "run")} | {**found["stack"], "requirements": None}
