"""Classify what changed between runs, and find flaky tests. Pure functions."""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from pytest_rlregress.commands.report.facts import Change, Flaky, Kind, Point, RecordedRun, by_night
from pytest_rlregress.failures.verdicts import Rank, Verdict

_NIGHTS = 90  # that a flaky test's rate is taken over


def classify_test(
    test: str, points: Sequence[Point], platform_runs: Sequence[RecordedRun], night: datetime.date
) -> Change | None:
    """Classify one test on one platform in one night.

    Args:
        test: Its key.
        points: Its timeline, ascending; what came after that night is left out.
        platform_runs: Every run of the platform, ascending.
        night: The night.

    Returns:
        None for a night without run, a test that was not asked for, and one that says as little as in the run before.
    """
    begin, end = bisect_left(platform_runs, night, key=by_night), bisect_right(platform_runs, night, key=by_night)
    first, last = bisect_left(points, night, key=by_night), bisect_right(points, night, key=by_night)
    earlier, tonight = points[:first], points[first:last]
    return classify_results(test, earlier, tonight) or classify_missing(
        test, earlier, tonight, platform_runs[:begin], platform_runs[begin:end]
    )


def classify_results(test: str, earlier: Sequence[Point], tonight: Sequence[Point]) -> Change | None:
    """Classify a test's results of the night by those before; None if it has none tonight."""
    said = [point for point in tonight if says_something(point)]
    if not said:
        return None
    wavering = _wavering(said)
    if wavering:
        now, best = worst(wavering), min(wavering, key=lambda point: point.rank)
        return _change(test, Kind.FLAKE, best, now, now, list(filter(_bad, wavering)))
    group = _latest(said)
    now = group[-1]  # they agree
    others = said[: said.index(group[0])]
    previous = next(filter(says_something, chain(reversed(others), reversed(earlier))), None)
    if not _bad(now):
        kind = Kind.REPAIRED if previous is not None and _bad(previous) else Kind.STEADY
        return _change(test, kind, previous, None, now)
    better, bad = _since_better(chain(reversed(said), reversed(earlier)), now.rank)
    if better is not None:
        return _change(test, _worse(better.run, bad), better, bad[0], now, bad)
    if previous is not None and previous.rank > now.rank:
        return _change(test, Kind.REPAIRED, previous, None, now)
    return _change(test, Kind.KNOWN if any(map(says_something, earlier)) else _first(now), None, bad[0], now, bad)


def classify_missing(
    test: str,
    earlier: Sequence[Point],
    tonight: Sequence[Point],
    before: Sequence[RecordedRun],
    runs: Sequence[RecordedRun],
) -> Change | None:
    """Classify a test without result tonight: lost if it had one in the run before.

    The run before is the last that asked for the same tests or fewer, or in which the test was if it is there tonight
    too. One that ended early counts only if it came to the test.

    Args:
        earlier: What came of the test before tonight.
        tonight: What came of it tonight, such as a skip.
        before: The platform's runs before tonight.
        runs: Those of tonight.
    """
    points = {point.run.id: point for point in earlier[-len(before) :]} if runs else {}
    for run in reversed(before):
        point = points.get(run.id)
        if not any(one.call.covers(run.call) for one in runs) and not (point and tonight):
            continue
        if point is not None and says_something(point):
            now = tonight[-1] if tonight else None
            if now and now.word in (Verdict.UNAVAILABLE, Verdict.BLOCKED) and not point.fails:
                return _change(test, Kind.LOST, point, now, now, [now])
            return _change(test, Kind.LOST, point, None, now)
        if run.extra.state == "complete":
            return None
    return None


def says_something(point: Point) -> bool:
    """Return whether a result says anything about the stack: a skip or an interrupted test does not."""
    return point.rank is not Rank.NOTHING


def worst(points: Iterable[Point]) -> Point:
    """Return the worst result, of several the latest."""
    return max(points, key=lambda point: (point.rank, point.run.start))


def worst_of_night(points: Sequence[Point]) -> Point:
    """Return the worst result under the last conditions of a night."""
    return worst(_latest([point for point in points if says_something(point)] or points))


def _latest(points: Sequence[Point]) -> list[Point]:
    """Return the results under the same conditions as the last."""
    return [point for point in points if point.run.conditions == points[-1].run.conditions]


def _wavering(said: Sequence[Point]) -> list[Point]:
    """Return the results of a night that disagree, or whose attempts do, though nothing was changed."""
    for point in said:
        same = [one for one in said if one.run.conditions == point.run.conditions]
        if point.flaky or len({one.rank for one in same}) > 1:
            return same
    return []


def _since_better(latest_first: Iterable[Point], now: int) -> tuple[Point | None, list[Point]]:
    """Find a bad test's last good result, and its bad ones since.

    One that never was good may have got worse all the same: from reproduced to crashed.
    """
    bad: list[Point] = []
    better, since = now, 0
    for point in latest_first:
        found = point.rank
        if found is Rank.GOOD:
            return point, bad[::-1]
        if found is Rank.NOTHING:
            continue
        if found < better:
            better, since = found, len(bad)
        bad.append(point)
    return (None, bad[::-1]) if better == now else (bad[since], bad[:since][::-1])


def _first(now: Point) -> Kind:
    """Classify a bad test without earlier result: a documented failure that is reproduced does not fail."""
    return Kind.NEW_FAILING if now.fails else Kind.STEADY


def _worse(good: RecordedRun, bad: Sequence[Point]) -> Kind:
    if len(bad) == 1:
        return Kind.UNCONFIRMED
    first = bad[0].run
    same = (good.platform, good.hardware) == (first.platform, first.hardware)
    return Kind.REGRESSION if same else Kind.HARDWARE_CHANGE


def _change(
    test: str, kind: Kind, before: Point | None, since: Point | None, now: Point | None, bad: Sequence[Point] = ()
) -> Change:
    return Change(kind, test, before, since, now, len({point.run.night for point in bad}), len(bad))


def _bad(point: Point) -> bool:
    return point.rank > Rank.GOOD


# -- flaky tests -------------------------------------------------------------------------------------------------------


def find_flaky(platform: str, timelines: Mapping[str, Sequence[Point]], date: datetime.date) -> list[Flaky]:
    """Find the tests of a platform that disagree with themselves under the same conditions, over the last 90 nights."""
    begin = date - datetime.timedelta(days=_NIGHTS - 1)
    flaky = []
    for test, points in timelines.items():
        recent = points[bisect_left(points, begin, key=by_night) : bisect_right(points, date, key=by_night)]
        if len({point.word for point in recent}) > 1 or any(point.flaky for point in recent):
            runs, bad = _find_wavering([point for point in recent if says_something(point)])
            if bad:
                flaky.append(Flaky(platform, test, bad[-1].failure, len(runs), len(bad), bad[-1].run))
    return flaky


def _find_wavering(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Return the runs in which a test may have been flaky, and the bad ones among them; none if it was not.

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
        nights, last = {point.night for point in better}, better[-1].run.start
        runs += group
        bad += wrong + [point for point in better if point.flaky]
        went_back = any(point.night in nights or point.run.start < last for point in wrong)
        wavered = wavered or went_back or any(point.flaky for point in group)
    return (runs, sorted(bad, key=lambda point: point.run.start)) if wavered else ([], [])
