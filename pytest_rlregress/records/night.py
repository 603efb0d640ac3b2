"""Judge one night over all platforms, or compare two runs without a history; each has its headline."""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_rlregress.failures.verdicts import NumberWord, Rank
from pytest_rlregress.records.changes import (
    TOLD,
    WORSE,
    Change,
    Flaky,
    Kind,
    classify,
    count_changed,
    find_flaky,
    find_worst_of_night,
)
from pytest_rlregress.records.corridors import judge_numbers
from pytest_rlregress.records.history import History, Point, Problem, RecordedRun, by_night
from pytest_rlregress.records.reader import RecordError
from pytest_rlregress.util.coverage import Coverage, Unchecked
from pytest_rlregress.util.text import plural, quoted


@dataclass(frozen=True)
class Baseline:
    """How many numbers of training steps are only watched so far, and which trusted night of them this one is."""

    numbers: int
    night: int


@dataclass(frozen=True)
class PlatformNight:
    """One platform on one night. Without runs there is a missing run: nothing is known, and nothing is green.

    Attributes:
        name: Of the hardware profile.
        runs: Those of the night, ascending.
        last: The latest run before that night.
        results: The worst of the night, by test.
        changes: One for each test that ran this night or in the run before.
        numbers: One for each number of a training step that was measured this night, or is missing.
    """

    name: str
    runs: Sequence[RecordedRun]
    last: RecordedRun | None
    results: Mapping[str, Point]
    changes: Sequence[Change]
    numbers: Sequence[Change] = ()

    @property
    def every_change(self) -> list[Change]:
        """Those of tests, then those of numbers."""
        return [*self.changes, *self.numbers]

    @property
    def baseline(self) -> Baseline | None:
        """The numbers that are only watched so far; None if all are judged."""
        watched = [change.number for change in self.numbers if change.latest.word == NumberWord.WATCHED]
        nights = [number.nights + 1 for number in watched if number]
        return Baseline(len(nights), min(nights)) if nights else None

    @property
    def is_cut(self) -> bool:
        """Whether a run of the night was interrupted or killed, or still goes on."""
        return any(run.extra.state != "complete" for run in self.runs)

    @property
    def is_silent(self) -> bool:
        """Whether no test said anything."""
        return not any(point.says_something for point in self.results.values())

    @property
    def word(self) -> str:
        """The night in a word."""
        kinds = {change.kind for change in self.every_change}
        worse = kinds & {*WORSE}
        if not self.runs:
            return "no run"
        if worse:
            return "flake" if worse == {Kind.FLAKE} else "worse"
        if Kind.LOST in kinds or self.is_silent or all(run.extra.state != "complete" for run in self.runs):
            return "interrupted"
        if Kind.NEW_FAILING in kinds:
            return "new failing"
        return "known" if any(point.fails for point in self.results.values()) else "good"


@dataclass(frozen=True)
class Night:
    """One night over all platforms: platforms by name, flaky tests by rate."""

    date: datetime.date
    platforms: Sequence[PlatformNight]
    flaky: Sequence[Flaky]
    problems: Sequence[Problem]

    @property
    def changes(self) -> list[Change]:
        """Those of every platform."""
        return [change for platform in self.platforms for change in platform.every_change]

    @property
    def coverage(self) -> Coverage:
        """The platforms that were compared with an earlier run, and why the others were not."""
        compared, others = [], {}
        for platform in self.platforms:
            if not platform.runs:
                others[platform.name] = Unchecked("it did not run", (f"a run on {platform.name}",))
            elif platform.last is None and not platform.changes:
                others[platform.name] = Unchecked("its first night: nothing to compare with yet")
            elif platform.is_silent:
                others[platform.name] = Unchecked("no test ran", (f"a run on {platform.name}",))
            else:
                compared.append(platform.name)
        return Coverage.of(compared, others)

    @property
    def colour(self) -> Literal["green", "amber", "red"]:
        """Red if something got worse for certain, green if all that should have run did and no test fails."""
        if any(change.trips for change in self.changes):
            return "red"
        good = all(platform.word == "good" and not platform.is_cut for platform in self.platforms)
        return "green" if self.platforms and good else "amber"

    @property
    def headline(self) -> str:
        """The first sentence of every report."""
        ran = [platform for platform in self.platforms if platform.runs]
        if not ran:
            return "Nothing ran this night."
        several = len(self.platforms) > 1
        later = [platform for platform in ran if platform.last is not None]
        silent = [platform.name for platform in later if platform.is_silent]
        compared = [platform.name for platform in later if platform.name not in silent]
        parts = [part for kind in WORSE for part in _tell_worse(kind, ran)]
        if compared and not parts:
            parts.append(f"nothing got worse on {_list(compared)}")
        parts += [_tell_first(platform, several) for platform in ran if platform.last is None]
        for kind in (Kind.NEW_FAILING, Kind.LOST, Kind.REPAIRED):
            found = [change for platform in later for change in platform.every_change if change.kind is kind]
            if found:
                where = sorted({change.platform for change in found})
                parts.append(f"{_count(found, kind)} on {_list(where)}")
        known = [change.platform for change in self.changes if change.fails_as_before]
        if known:
            on = f" on {_list(sorted(set(known)))}" if several else ""
            parts.append(f"{_count_failing(len(known))} as before{on}")
        if silent:
            parts.append(f"no test ran on {_list(silent)}")
        if cut := [platform.name for platform in ran if platform.is_cut]:
            parts.append(f"not every run on {_list(cut)} was complete")
        if missing := [platform.name for platform in self.platforms if not platform.runs]:
            parts.append(f"{_list(missing)} did not run")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}.{'' if later else ' Nothing to compare with yet.'}"


@dataclass(frozen=True)
class RunComparison:
    """The changes from a run to those after it: one, and its reruns; a change for each test that says something."""

    before: RecordedRun
    after: Sequence[RecordedRun]
    changes: Sequence[Change]
    problems: Sequence[Problem]

    @property
    def coverage(self) -> Coverage:
        """What was compared: nothing, where no test says something in both."""
        if not any(change.before and change.now for change in self.changes):
            return Coverage((), (("the tests", Unchecked("none says something before and after")),))
        return Coverage(("the tests of both",))

    @property
    def headline(self) -> str:
        """The first sentence of the comparison."""
        by_kind = {kind: [change for change in self.changes if change.kind is kind] for kind in TOLD}
        parts = [_count(found, kind) for kind, found in by_kind.items() if found]
        if not any(found for kind, found in by_kind.items() if kind is not Kind.REPAIRED):
            parts.append("nothing got worse")
        known = sum(change.fails_as_before for change in self.changes)
        if known:
            parts.append(f"{_count_failing(known)} as before")
        return ", ".join(parts)


def judge_night(history: History, date: datetime.date | None = None, expect: Sequence[str] = ()) -> Night:
    """Judge one night.

    Args:
        history: The records.
        date: The night; by default that of the newest record.
        expect: Platforms that should have run; one without record has a missing run, as has one that ran before.

    Raises:
        RecordError: There is no record and no date.
    """
    if date is None:
        if not history.runs:
            reasons = [f"{problem.path}: {problem.text}" for problem in history.problems[:3]]
            raise RecordError(f"no record to report on: {'; '.join(reasons) or 'no source was given'}")
        date = history.runs[-1].night
    platforms, flaky = [], []
    for platform in sorted({*history.timelines, *expect}):
        runs = [run for run in history.runs if run.platform == platform and run.night <= date]
        timelines = {
            test: points[: bisect_right(points, date, key=by_night)]
            for test, points in history.timelines.get(platform, {}).items()
        }
        timelines = {test: points for test, points in timelines.items() if points}
        platforms.append(_judge_platform(platform, runs, timelines, date, history.trust))
        flaky += find_flaky(platform, timelines, date)
    flaky.sort(key=lambda one: (-one.bad / one.runs, one.platform, one.test))
    return Night(date, platforms, flaky, history.problems)


def _judge_platform(
    platform: str,
    runs: Sequence[RecordedRun],
    timelines: Mapping[str, Sequence[Point]],
    date: datetime.date,
    trust: Mapping[str, bool],
) -> PlatformNight:
    begin = bisect_left(runs, date, key=by_night)
    before, tonight = runs[:begin], runs[begin:]
    results, changes = {}, []
    for test, points in timelines.items():
        first = bisect_left(points, date, key=by_night)
        if first < len(points):
            results[test] = find_worst_of_night(points[first:])
        change = classify(test, points[:first], points[first:], before, tonight)
        if change is not None:
            changes.append(change)
    numbers = []
    for (test, _), points in judge_numbers(runs, timelines, trust).items():
        first = bisect_left(points, date, key=by_night)
        change = classify(test, points[:first], points[first:], (), tonight)
        if change is not None:
            numbers.append(change)
    return PlatformNight(platform, tonight, before[-1] if before else None, results, changes, numbers)


def compare(history: History, before: Path, after: Sequence[Path]) -> RunComparison:
    """Classify the changes from one run to those after it, whatever their clocks say.

    Args:
        history: Of these files.
        before: The record to compare with.
        after: The records of runs after a change, all of the same: what is bad in one only is not confirmed.

    Raises:
        RecordError: One of them isn't a record, or two are of the same run.
    """
    first, *rest = (find_run(history, path) for path in (before, *after))
    if len({run.id for run in (first, *rest)}) <= len(rest):
        raise RecordError(
            f"two of {', '.join(map(str, (before, *after)))} are of the same run: a copy confirms nothing"
        )
    tests: dict[str, dict[str, Point]] = {}
    for timelines in history.timelines.values():
        for test, points in timelines.items():
            tests.setdefault(test, {}).update({point.run.id: point for point in points})
    changes = []
    for test, by_run in tests.items():
        earlier, later = ([by_run[run.id] for run in runs if run.id in by_run] for runs in ([first], rest))
        change = classify(test, earlier, later, [first], rest)
        if change is not None:
            changes.append(change)
    return RunComparison(first, rest, changes, history.problems)


def find_run(history: History, path: Path) -> RecordedRun:
    """Return the run of a record.

    Raises:
        RecordError: The file isn't a record of the history.
    """
    for run in history.runs:
        if run.path.resolve() == path.resolve():
            return run
    reasons = [problem.text for problem in history.problems if problem.path.resolve() == path.resolve()]
    raise RecordError(f"{path}: {'; '.join(reasons) or 'no record of a run. pytest --rl-record-dir=DIR writes one'}")


# -- the headline ------------------------------------------------------------------------------------------------------


def _tell_first(platform: PlatformNight, several: bool) -> str:
    """``first run: 19 of 379 tests fail``: of a platform's first night."""
    runs = "first run" if len(platform.runs) == 1 else f"first {len(platform.runs)} runs"
    where = f" on {quoted(platform.name)}" if several else ""
    said = [point.rank for point in platform.results.values()]
    failing, silent, tests = said.count(Rank.FAILING), said.count(Rank.NOTHING), plural(len(said), "test")
    if silent == len(said):
        told = "no test ran"
    elif failing:
        told = f"{failing} of {tests} fail{'s' if failing == 1 else ''}"
    else:
        told = f"none of {tests} fails, {silent} did not run" if silent else f"all {tests} pass"
    return f"{runs}{where}: {told}"


def _tell_worse(kind: Kind, platforms: Sequence[PlatformNight]) -> Iterator[str]:
    """``2 regressions on h100 since 2026-11-18``, one for each platform that has any."""
    for platform in platforms:
        changes = [change for change in platform.every_change if change.kind == kind]
        if changes:
            nights = sorted({change.since.night for change in changes if change.since and kind is not Kind.FLAKE})
            since = f" since {nights[0]}" if nights else ""
            more = " and later" if len(nights) > 1 else ""
            yield f"{_count(changes, kind)} on {quoted(platform.name)}{since}{more}"


def _count_failing(count: int, noun: str = "test") -> str:
    return f"{plural(count, noun)} fail{'s' if count == 1 else ''}"


def _count(changes: Sequence[Change], kind: Kind) -> str:
    count = len(changes)
    told = count_changed(changes)
    return {
        Kind.HARDWARE_CHANGE: f"{told} worse on changed hardware",
        Kind.UNCONFIRMED: f"{told} worse in one run (unconfirmed)",
        Kind.NEW_FAILING: _count_failing(count, "new test"),
        Kind.LOST: f"{told} lost",
        Kind.REPAIRED: f"{told} repaired",
    }.get(kind, plural(count, kind))


def _list(names: Sequence[str]) -> str:
    names = list(map(quoted, names))
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
