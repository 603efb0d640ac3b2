"""What became of each test: classify it against its earlier runs, and find flaky tests. Pure functions."""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from pytest_rlregress.failures.verdicts import EXPECTED, Rank, Verdict
from pytest_rlregress.records.history import Point, RecordedRun, by_night
from pytest_rlregress.records.step_numbers import JudgedNumber
from pytest_rlregress.util.text import plural

_NIGHTS = 90  # that a flaky test's rate is taken over


class Kind(StrEnum):
    """What became of a test, against the last run in which it was good; the most urgent first.

    Attributes:
        sentence: What it means.
    """

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Kind:
        """Make a string of the word, with what it means."""
        kind = str.__new__(cls, word)
        kind._value_, kind.sentence = word, sentence
        return kind

    REGRESSION = "regression", "worse, and every run since agrees, two at least: tonight's rerun, or last night's"
    HARDWARE_CHANGE = "hardware change", "the same, on other hardware than when it was good: not comparable"
    UNCONFIRMED = "unconfirmed", "worse, in the only run since: run it again"
    NEW_FAILING = "new failing", "fails, and has not run on this hardware before: nothing to compare with"
    FLAKE = "flake", "a rerun in the same night, with nothing changed, disagrees"
    LOST = (
        "lost",
        "had a result in the run before, and has none tonight though the hardware ran: a skip is never a pass",
    )
    REPAIRED = "repaired", "better than in the run before"
    KNOWN = "known", "bad in every run on this hardware"
    STEADY = "steady", "good as before; or seen for the first time, and it does not fail"


#: Kinds that say something got worse, or may have.
WORSE = (Kind.REGRESSION, Kind.HARDWARE_CHANGE, Kind.UNCONFIRMED, Kind.FLAKE)
#: Kinds of which nobody need be told.
QUIET = (Kind.KNOWN, Kind.STEADY)
#: Kinds that are told of in full; the rest is counted.
TOLD = tuple(kind for kind in Kind if kind not in QUIET)


@dataclass(frozen=True)
class Change:
    """What changed for one test on one platform, in one night.

    Attributes:
        test: Its key.
        before: Where it was last good before it got worse; None if it never was. For what was repaired or
            lost the run before.
        now: The worst of tonight; None if it did not run.
        bad: Where it has been bad since then, ascending; for a flake the bad ones of the runs that disagree.
    """

    kind: Kind
    test: str
    before: Point | None
    now: Point | None
    bad: Sequence[Point] = ()

    @property
    def since(self) -> Point | None:
        """Where it was bad first; None for a good one."""
        if self.kind is Kind.FLAKE:
            return self.now
        return self.bad[0] if self.bad else None

    @property
    def nights(self) -> int:
        """In how many nights it has been bad."""
        return len({point.night for point in self.bad})

    @property
    def runs(self) -> int:
        """In how many runs it has been bad."""
        return len(self.bad)

    @property
    def latest(self) -> Point:
        """The latest that is known of the test."""
        found = self.now or self.before
        if found is None:
            raise ValueError("nothing is known of the test")
        return found

    @property
    def platform(self) -> str:
        """Where it is."""
        return self.latest.run.platform

    @property
    def number(self) -> JudgedNumber | None:
        """The step's number that changed; None if the test itself did."""
        return self.latest.number

    @property
    def trips(self) -> bool:
        """Whether the gate closes for it: it got worse, and that repeats."""
        return self.kind is Kind.REGRESSION

    @property
    def fails(self) -> bool:
        """Whether the test fails tonight."""
        return self.now is not None and self.now.fails

    @property
    def fails_as_before(self) -> bool:
        """Whether it fails tonight, and nothing about that is new."""
        return self.kind is Kind.KNOWN and self.fails


def count_changed(changes: Sequence[Change]) -> str:
    """Count what changed: ``2 tests and 1 number``; a number is one of a training step."""
    numbers = sum(change.number is not None for change in changes)
    tests = len(changes) - numbers
    told = [plural(tests, "test")] if tests or not numbers else []
    told += [plural(numbers, "number")] if numbers else []
    return " and ".join(told)


def classify(
    test: str,
    earlier: Sequence[Point],
    tonight: Sequence[Point],
    before: Sequence[RecordedRun],
    runs: Sequence[RecordedRun],
) -> Change | None:
    """Classify one test on one platform in one night.

    Args:
        test: Its key.
        earlier: Its results before tonight, ascending.
        tonight: Its results of tonight.
        before: The platform's runs before tonight, ascending.
        runs: Those of tonight.

    Returns:
        None for a night without run, a test that was not asked for, and one that says as little as in the run before.
    """
    said = [point for point in tonight if point.says_something]
    if not said:
        return _classify_missing(test, earlier, tonight, before, runs)
    wavering = _find_disagreement(said)
    if wavering:
        best = min(wavering, key=lambda point: point.rank)
        return Change(Kind.FLAKE, test, best, find_worst(wavering), list(filter(_is_bad, wavering)))
    group = _take_latest(said)
    now = group[-1]  # they agree
    others = said[: said.index(group[0])]
    previous = next((one for one in chain(reversed(others), reversed(earlier)) if one.says_something), None)
    if not _is_bad(now):
        repaired = previous is not None and _is_bad(previous) and now.word != EXPECTED
        kind = Kind.REPAIRED if repaired else Kind.STEADY
        return Change(kind, test, previous, now)
    better, bad = _since_better(chain(reversed(said), reversed(earlier)), now.rank)
    if better is not None:
        return Change(_choose_worse(better.run, bad), test, better, now, bad)
    if previous is not None and previous.rank > now.rank:
        return Change(Kind.REPAIRED, test, previous, now)
    if any(point.says_something for point in earlier):
        return Change(Kind.KNOWN, test, None, now, bad)
    # a documented failure that is reproduced does not fail
    return Change(Kind.NEW_FAILING if now.fails else Kind.STEADY, test, None, now, bad)


def _classify_missing(
    test: str,
    earlier: Sequence[Point],
    tonight: Sequence[Point],
    before: Sequence[RecordedRun],
    runs: Sequence[RecordedRun],
) -> Change | None:
    """Classify a test without result tonight: lost if it had one in the run before.

    The run before is the last that asked for the same tests or fewer, or in which the test was if it is there tonight
    too. One that ended early counts only if it came to the test.
    """
    points = {point.run.id: point for point in earlier[-len(before) :]} if runs else {}
    for run in reversed(before):
        point = points.get(run.id)
        if not any(one.call.covers(run.call) for one in runs) and not (point and tonight):
            continue
        if point is not None and point.says_something:
            now = tonight[-1] if tonight else None
            if now and now.word in (Verdict.UNAVAILABLE, Verdict.BLOCKED) and not point.fails:
                return Change(Kind.LOST, test, point, now, [now])
            return Change(Kind.LOST, test, point, now)
        if run.extra.state == "complete":
            return None
    return None


def find_worst(points: Iterable[Point]) -> Point:
    """Return the worst result, of several the latest."""
    return max(points, key=lambda point: (point.rank, point.run.start))


def find_worst_of_night(points: Sequence[Point]) -> Point:
    """Return the worst result under the last conditions of a night."""
    return find_worst(_take_latest([point for point in points if point.says_something] or points))


def _take_latest(points: Sequence[Point]) -> list[Point]:
    """Return the results under the same conditions as the last."""
    return [point for point in points if point.run.conditions == points[-1].run.conditions]


def _find_disagreement(said: Sequence[Point]) -> list[Point]:
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


def _choose_worse(good: RecordedRun, bad: Sequence[Point]) -> Kind:
    if len(bad) == 1:
        return Kind.UNCONFIRMED
    first = bad[0].run
    same = (good.platform, good.hardware) == (first.platform, first.hardware)
    return Kind.REGRESSION if same else Kind.HARDWARE_CHANGE


def _is_bad(point: Point) -> bool:
    return point.rank > Rank.GOOD


# -- flaky tests -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flaky:
    """A flaky test: ``bad`` of ``runs`` runs under the same conditions were worse than the others."""

    platform: str
    test: str
    failure: str
    runs: int
    bad: int
    last: RecordedRun


def find_flaky(platform: str, timelines: Mapping[str, Sequence[Point]], date: datetime.date) -> list[Flaky]:
    """Find a platform's tests that disagree with themselves under the same conditions, over the 90 nights up to date.

    The timelines end with that night.
    """
    begin = date - datetime.timedelta(days=_NIGHTS - 1)
    flaky = []
    for test, points in timelines.items():
        recent = points[bisect_left(points, begin, key=by_night) :]
        if len({point.word for point in recent}) > 1 or any(point.flaky for point in recent):
            runs, bad = _find_wavering([point for point in recent if point.says_something])
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
