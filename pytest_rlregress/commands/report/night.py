"""Judge one night over all platforms, or compare two runs without a history."""

from __future__ import annotations

import datetime
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_rlregress.commands.report.classify import (
    classify_missing,
    classify_results,
    classify_test,
    find_flaky,
    says_something,
    worst_of_night,
)
from pytest_rlregress.commands.report.facts import (
    WORSE,
    Change,
    Kind,
    Night,
    PlatformNight,
    Point,
    RecordedRun,
    RunComparison,
    by_night,
)
from pytest_rlregress.commands.report.history import History
from pytest_rlregress.records.reader import RecordError

Timelines = Mapping[str, Sequence[Point]]


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
    for platform in sorted({*history.platforms, *expect}):
        runs = [run for run in history.runs if run.platform == platform and run.night <= date]
        timelines = {
            test: points[: bisect_right(points, date, key=by_night)]
            for test, points in history.timelines(platform).items()
        }
        timelines = {test: points for test, points in timelines.items() if points}
        platforms.append(_judge_platform(platform, runs, timelines, date))
        flaky += find_flaky(platform, timelines, date)
    flaky.sort(key=lambda one: (-one.bad / one.runs, one.platform, one.test))
    return Night(date, tuple(platforms), tuple(flaky), history.problems)


def _judge_platform(
    platform: str, runs: Sequence[RecordedRun], timelines: Timelines, date: datetime.date
) -> PlatformNight:
    tonight = tuple(run for run in runs if run.night == date)
    before = runs[: len(runs) - len(tonight)]
    points = {test: [point for point in found if point.night == date] for test, found in timelines.items()}
    results = {test: worst_of_night(found) for test, found in points.items() if found}
    found = [classify_test(test, points, runs, date) for test, points in timelines.items()] if tonight else []
    changes = tuple(change for change in found if change is not None)
    last = before[-1] if before else None
    return PlatformNight(platform, tonight, last, results, changes, _choose_word(tonight, results, changes))


def _choose_word(runs: Sequence[RecordedRun], results: Mapping[str, Point], changes: Sequence[Change]) -> str:
    """Summarise a platform's night in a word."""
    kinds = {change.kind for change in changes}
    worse = kinds & {*WORSE}
    if not runs:
        return "no run"
    if worse:
        return "flake" if worse == {Kind.FLAKE} else "worse"
    silent = not any(map(says_something, results.values()))
    if Kind.LOST in kinds or silent or all(run.extra.state != "complete" for run in runs):
        return "interrupted"
    if Kind.NEW_FAILING in kinds:
        return "new failing"
    return "known" if any(point.fails for point in results.values()) else "good"


def compare(history: History, before: Path, after: Sequence[Path]) -> RunComparison:
    """Classify the changes from one run to those after it, whatever their clocks say.

    Args:
        history: Of these files.
        before: The record to compare with.
        after: The records of runs after a change, all of the same: what is bad in one only is not confirmed.

    Raises:
        RecordError: One of them isn't a record, or two are of the same run.
    """
    first, *rest = (_find_run(history, path) for path in (before, *after))
    if len({run.id for run in (first, *rest)}) <= len(rest):
        raise RecordError(
            f"two of {', '.join(map(str, (before, *after)))} are of the same run: a copy confirms nothing"
        )
    tests: dict[str, dict[str, Point]] = {}
    for platform in history.platforms:
        for test, points in history.timelines(platform).items():
            tests.setdefault(test, {}).update({point.run.id: point for point in points})
    changes = []
    for test, by_run in tests.items():
        earlier, later = ([by_run[run.id] for run in runs if run.id in by_run] for runs in ([first], rest))
        found = classify_results(test, earlier, later) or classify_missing(test, earlier, later, [first], rest)
        if found is not None:
            changes.append(found)
    return RunComparison(first, tuple(rest), tuple(changes), history.problems)


def _find_run(history: History, path: Path) -> RecordedRun:
    for run in history.runs:
        if run.path.resolve() == path.resolve():
            return run
    reasons = [problem.text for problem in history.problems if problem.path.resolve() == path.resolve()]
    raise RecordError(f"{path}: {'; '.join(reasons) or 'no record of a run. pytest --rl-record-dir=DIR writes one'}")
