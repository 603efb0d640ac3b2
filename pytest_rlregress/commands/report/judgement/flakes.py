"""Find flaky tests: those that disagree with themselves under the same conditions, and how often."""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from pytest_rlregress.commands.report.judgement.classify import says_something, varies
from pytest_rlregress.commands.report.judgement.facts import Flaky, Point, by_night
from pytest_rlregress.failures.verdicts import Rank

_NIGHTS = 90  # that a rate is taken over


def find_flaky(platform: str, timelines: Mapping[str, Sequence[Point]], date: datetime.date) -> list[Flaky]:
    """Find the flaky tests of a platform over the last three months up to a night."""
    begin = date - datetime.timedelta(days=_NIGHTS - 1)
    flaky = []
    for test, points in timelines.items():
        recent = points[bisect_left(points, begin, key=by_night) : bisect_right(points, date, key=by_night)]
        found = _rate([point for point in recent if says_something(point)]) if varies(recent) else None
        if found:
            runs, bad = found
            flaky.append(Flaky(platform, test, bad[-1].failure, len(runs), len(bad), bad[-1].run))
    return flaky


def _rate(points: Sequence[Point]) -> tuple[list[Point], list[Point]] | None:
    """Return the runs in which a test may have been flaky, and the bad ones among them; None if it was not.

    Only where it was better do bad runs under the same conditions speak of chance, and only if it was so again.
    """
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        groups.setdefault(point.run.conditions, []).append(point)
    runs: list[Point] = []
    bad: list[Point] = []
    wavered = False
    for group in groups.values():
        best = min(point.rank for point in group)
        if best is Rank.FAILING:
            continue
        wrong = [point for point in group if point.rank > best]
        better = [point for point in group if point.rank is best]
        runs += group
        bad += wrong + [point for point in better if point.flaky]
        wavered = wavered or any(point.flaky for point in group) or _went_back(wrong, better)
    bad.sort(key=lambda point: point.run.start)
    return (runs, bad) if wavered else None


def _went_back(wrong: Sequence[Point], better: Sequence[Point]) -> bool:
    """Return whether a bad run is followed by a better one, or has one in the same night."""
    nights = {point.run.night for point in better}
    return any(point.run.night in nights or point.run.start < better[-1].run.start for point in wrong)
