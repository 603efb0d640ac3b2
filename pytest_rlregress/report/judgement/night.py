"""Judge one night over all platforms: its results, its changes, and the last weeks at a glance."""

from __future__ import annotations

import datetime
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pytest_rlregress.report.history.selection import covers
from pytest_rlregress.report.judgement import flakes, upgrades
from pytest_rlregress.report.judgement.classify import classify_test, says_something, varies, worst_of_night
from pytest_rlregress.report.judgement.facts import Cell, Change, Night, PlatformNight, Point, RecordedRun, by_night
from pytest_rlregress.report.judgement.kinds import WORSE, Kind
from pytest_rlregress.verdicts import Rank, rank

if TYPE_CHECKING:
    from pytest_rlregress.report.history.store import History

_NIGHTS = 30  # shown at a glance

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
    found = [upgrade for platform in runs for upgrade in upgrades.find_upgrades(runs[platform], timelines[platform])]
    flaky = [one for platform in runs for one in flakes.find_flaky(platform, timelines[platform], date)]
    return Night(
        date,
        tuple(platforms),
        tuple(sorted(found, key=lambda upgrade: upgrade.after.start, reverse=True)),
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
    days = [date - datetime.timedelta(days=back) for back in reversed(range(_NIGHTS))]
    nightly = {night: tuple(group) for night, group in groupby(runs, key=by_night)}
    points = _nights(timelines, days)
    shown = {day: {test: worst_of_night(found) for test, found in tests.items()} for day, tests in points.items()}
    suspects = {test: found for test, found in timelines.items() if len(found) < len(runs) or varies(found)}
    cells = []
    for day in days:  # in the first night there is something to tell of each test, also of one that never changed since
        told = timelines if runs and day == runs[0].night else suspects
        cells.append(_cell(day, nightly.get(day, ()), shown[day], _changes(runs, told, day)))
    tonight = nightly.get(date, ())
    before = runs[: len(runs) - len(tonight)]
    good = (
        run
        for run in reversed(before)
        if _good(run) and (not tonight or any(covers(run.asked, one.asked) for one in tonight))
    )
    return PlatformNight(
        platform,
        tonight,
        before[-1] if before else None,
        next(good, None),
        shown[date],
        _changes(runs, timelines, date) if tonight else (),
        tuple(cells),
    )


def _nights(timelines: Timelines, days: Sequence[datetime.date]) -> dict[datetime.date, dict[str, list[Point]]]:
    """Split timelines, which end with the last of these successive nights, by night."""
    found: dict[datetime.date, dict[str, list[Point]]] = {day: {} for day in days}
    for test, points in timelines.items():
        for point in points[bisect_left(points, days[0], key=by_night) :]:
            found[point.night].setdefault(test, []).append(point)
    return found


def _changes(runs: Sequence[RecordedRun], timelines: Timelines, night: datetime.date) -> tuple[Change, ...]:
    found = (classify_test(test, points, runs, night) for test, points in timelines.items())
    return tuple(change for change in found if change is not None)


def _good(run: RecordedRun) -> bool:
    """Whether a run is complete and nothing in it failed; a documented failure may be reproduced."""
    ranks = [rank(word) for word, count in run.counts.items() if count]
    return run.state == "complete" and Rank.GOOD in ranks and Rank.FAILING not in ranks


def _cell(
    date: datetime.date, runs: Sequence[RecordedRun], shown: Mapping[str, Point], changes: Sequence[Change]
) -> Cell:
    """Summarise a platform's night in a cell. ``changes`` may leave out steady tests."""
    bad = sum(point.fails for point in shown.values())
    kinds = {change.kind for change in changes}
    worse = kinds & {*WORSE}
    if not runs:
        word = "no run"
    elif worse:
        word = "flake" if worse == {Kind.FLAKE} else "worse"
    elif (
        kinds & {Kind.LOST_COVERAGE, Kind.MISSING}
        or not any(map(says_something, shown.values()))
        or all(run.state != "complete" for run in runs)
    ):
        word = "interrupted"
    else:
        word = "new failing" if Kind.NEW_FAILING in kinds else "known" if bad else "good"
    return Cell(date, word, bad)
