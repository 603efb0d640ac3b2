"""Find where a test flips among candidates in their order: releases of a package, or commits of a checkout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_rlregress.commands.bisect.answer import Culprit, Endpoint, NotFound
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer
from pytest_rlregress.commands.trials import progress, search
from pytest_rlregress.commands.trials.progress import ProgressWindow
from pytest_rlregress.commands.trials.runner import Candidate, TrialResult
from pytest_rlregress.commands.trials.search import NotMonotone
from pytest_rlregress.commands.trials.summaries import Untested
from pytest_rlregress.commands.trials.trial import State
from pytest_rlregress.stack.locks import Lock, differences


@dataclass(frozen=True)
class OrderedCandidates:
    """Candidates from the good end to the bad end.

    Attributes:
        name: The package.
        candidates: All that may be tried.
        points: The label, date and title of each.
        repaired: Whether the bad end is the older one.
    """

    name: str
    candidates: tuple[Candidate, ...]
    points: tuple[Endpoint, ...]
    repaired: bool

    def find(self, point: Endpoint) -> Candidate:
        """Find the candidate of a point."""
        return self.candidates[[one.label for one in self.points].index(point.label)]


def find_first_bad(among: OrderedCandidates, followed: FollowedTest) -> Culprit:
    """Try candidates until the place is found where the test flips; both ends were tried.

    Raises:
        NoAnswer: A good candidate comes after a bad one.
    """
    while True:
        states = [None if one is None else one.state for one in _classify_all(among, followed)]
        try:
            step = search.next_candidate(states)
        except NotMonotone as error:
            first, second = (among.candidates[at].label for at in (error.bad, error.good))
            raise NoAnswer(NotFound("not monotone", first, second)) from None
        if isinstance(step, search.Window):
            return _make_culprit(among, followed, step)
        followed.try_(among.candidates[step], lambda _: _window(among, followed))


def _classify_all(among: OrderedCandidates, followed: FollowedTest) -> list[TrialResult | None]:
    return [followed.classify(candidate) for candidate in among.candidates]


def _window(among: OrderedCandidates, followed: FollowedTest) -> ProgressWindow | None:
    states = [None if one is None else one.state for one in _classify_all(among, followed)]
    try:
        low, high = search.find_window(states)
    except NotMonotone:
        return None
    labels = [point.label for point in among.points[low : high + 1]]
    return ProgressWindow(progress.join_ends(labels), states[low:high].count(None), search.estimate_runs(states))


def _make_culprit(among: OrderedCandidates, followed: FollowedTest, found: search.Window) -> Culprit:
    results = _classify_all(among, followed)
    inside = range(found.last_good + 1, found.first_bad)
    ends = found.last_good, found.first_bad
    last, first = (followed.describe_at(among.candidates[at], among.points[at]) for at in ends)
    trials = (followed.runner.find_trial(among.candidates[at]) for at in ends)
    before, after = (trial.lock if trial is not None else None for trial in trials)

    def list_untested(places: Iterable[int]) -> tuple[Untested, ...]:
        return tuple(
            Untested(f"{among.points[at].label} {among.points[at].title}".strip(), one.reason)
            for at in places
            if (one := results[at]) is not None and one.state is State.UNKNOWN
        )

    return Culprit(
        among.name,
        last,
        first,
        among.repaired,
        between=list_untested(inside),
        moved=_list_moved(before, after, among.name),
        from_base=_list_moved(among.candidates[0].base, after, among.name),
        skipped=list_untested(at for at in range(len(results)) if at not in inside),
    )


def _list_moved(before: Lock | None, after: Lock | None, name: str) -> tuple[str, ...]:
    """List what differs between two locks beside the package under bisect."""
    if before is None or after is None:
        return ()
    return tuple(str(one) for one in differences(before, after) if one.name != name)
