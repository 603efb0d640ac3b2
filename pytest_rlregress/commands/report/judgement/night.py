"""Judge one night over all platforms: its results and its changes."""

from __future__ import annotations

import datetime
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_rlregress.commands.report.judgement import flakes
from pytest_rlregress.commands.report.judgement.classify import classify_test, says_something, worst_of_night
from pytest_rlregress.commands.report.judgement.facts import Change, Night, PlatformNight, Point, RecordedRun, by_night
from pytest_rlregress.commands.report.judgement.kinds import WORSE, Kind

if TYPE_CHECKING:
    from pytest_rlregress.commands.report.history.store import History

Timelines = Mapping[str, Sequence[Point]]


def judge_night(history: History, date: datetime.date | None = None, expect: Sequence[str] = ()) -> Night:
    """Judge one night.

    Args:
        history: The records.
        date: The night; by default that of the newest record.
        expect: Platforms that should have run; one without record has a missing run, as has one that ran before.

    Raises:
        ValueError: There is no record and no date.
    """
    if date is None:
        if not history.runs:
            raise ValueError("no record of a run, so no night to report on")
        date = _newest(history.runs).night
    runs = {
        platform: [run for run in history.runs if run.platform == platform and run.night <= date]
        for platform in history.platforms
    }
    timelines = {platform: _until(history.timelines(platform), date) for platform in runs}
    platforms = [
        _platform_night(platform, runs.get(platform, []), timelines.get(platform, {}), date)
        for platform in sorted({*runs, *expect})
    ]
    flaky = [one for platform in runs for one in flakes.find_flaky(platform, timelines[platform], date)]
    return Night(
        date,
        tuple(platforms),
        tuple(sorted(flaky, key=lambda one: (-one.bad / one.runs, one.platform, one.test))),
        history.problems,
    )


def _until(timelines: Timelines, date: datetime.date) -> Timelines:
    """Cut the timelines off after a night."""
    cut = {test: points[: bisect_right(points, date, key=by_night)] for test, points in timelines.items()}
    return {test: points for test, points in cut.items() if points}


def _newest(runs: Sequence[RecordedRun]) -> RecordedRun:
    """Return the latest run whose clock may be right."""
    tomorrow = time.time() + 86_400
    return next((run for run in reversed(runs) if run.start < tomorrow), runs[0])


def _platform_night(
    platform: str, runs: Sequence[RecordedRun], timelines: Timelines, date: datetime.date
) -> PlatformNight:
    tonight = tuple(run for run in runs if run.night == date)
    before = runs[: len(runs) - len(tonight)]
    points = {test: [point for point in found if point.night == date] for test, found in timelines.items()}
    results = {test: worst_of_night(found) for test, found in points.items() if found}
    changes = _changes(runs, timelines, date) if tonight else ()
    return PlatformNight(
        platform,
        tonight,
        before[-1] if before else None,
        results,
        changes,
        _word(tonight, results, changes),
    )


def _changes(runs: Sequence[RecordedRun], timelines: Timelines, night: datetime.date) -> tuple[Change, ...]:
    found = (classify_test(test, points, runs, night) for test, points in timelines.items())
    return tuple(change for change in found if change is not None)


def _word(runs: Sequence[RecordedRun], results: Mapping[str, Point], changes: Sequence[Change]) -> str:
    """Summarise a platform's night in a word."""
    kinds = {change.kind for change in changes}
    worse = kinds & {*WORSE}
    if not runs:
        return "no run"
    if worse:
        return "flake" if worse == {Kind.FLAKE} else "worse"
    if (
        Kind.LOST in kinds
        or not any(map(says_something, results.values()))
        or all(run.state != "complete" for run in runs)
    ):
        return "interrupted"
    if Kind.NEW_FAILING in kinds:
        return "new failing"
    return "known" if any(point.fails for point in results.values()) else "good"
