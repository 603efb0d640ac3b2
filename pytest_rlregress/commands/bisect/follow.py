"""Find the test that is good at one end and bad at the other, and the place between them where it flips."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_rlregress.commands.bisect.answer import Culprit, Endpoint, NotFound
from pytest_rlregress.commands.trials import search
from pytest_rlregress.commands.trials.failure_comparison import TrialResult, classify_trial, describe, find_observation
from pytest_rlregress.commands.trials.progress import Progress
from pytest_rlregress.commands.trials.runner import Candidate, TrialRunner
from pytest_rlregress.commands.trials.search import NotMonotone
from pytest_rlregress.commands.trials.trial import (
    GOOD_VERDICTS,
    Observation,
    State,
    Trial,
    TrialSummary,
    Untested,
    summarize_tests,
    summarize_trial,
)
from pytest_rlregress.stack.locks import Lock, differences
from pytest_rlregress.util.text import plural


class NoAnswer(Exception):
    """There is nothing to find between these ends: ``why`` says why."""

    def __init__(self, why: NotFound) -> None:
        super().__init__(why.kind)
        self.why = why


@dataclass(frozen=True)
class FlippingTest:
    """A test that is good at the good end and bad at the bad end.

    Attributes:
        test: Its key.
        bad: What it does at the bad end: the failure that is looked for.
        hardware: What the bad end ran on.
        others: Keys of the other tests of which that is true.
    """

    test: str
    bad: Observation
    hardware: str
    others: tuple[str, ...]


class FollowedTest:
    """Tries candidates, and says whether one test is good or bad there.

    Attributes:
        flip: The test, and its failure at the bad end.
        labels: The two ends in words.
        runner: Where candidates are tried.
        progress: Told of every trial.
    """

    def __init__(
        self, flip: FlippingTest, good: Candidate, bad: Candidate, runner: TrialRunner, progress: Progress
    ) -> None:
        self.flip, self.runner, self.labels = flip, runner, (good.label, bad.label)
        self._good, self._bad, self.progress = good, bad, progress

    def classify(self, candidate: Candidate) -> TrialResult | None:
        """Say whether a candidate is good or bad; None before it was tried."""
        trial = self.runner.find_trial(candidate)
        return None if trial is None else self._classify(trial)

    def _classify(self, trial: Trial) -> TrialResult:
        return classify_trial(trial, self.flip.test, self.flip.bad, self.flip.hardware)

    def try_(self, candidate: Candidate) -> TrialResult:
        """Try a candidate, and report what came out."""
        return self._classify(self.runner.try_(candidate, self._summarize))

    def _summarize(self, trial: Trial) -> TrialSummary:
        found = self._classify(trial)
        reason = found.reason if found.state is State.UNKNOWN else ""
        return summarize_trial(trial, self.flip.test, found.state, reason)

    def describe_at(self, candidate: Candidate, point: Endpoint) -> Endpoint:
        """Describe the test as it was at a candidate."""
        trial = self.runner.find_trial(candidate)
        observation = find_observation(trial.runs[0], self.flip.test) if trial is not None and trial.runs else None
        if observation is None:
            return point
        return replace(point, verdict=observation.verdict, text=observation.text or observation.outcome.message)

    def describe_ends(self, days: tuple[str | None, str | None]) -> tuple[Endpoint, Endpoint]:
        """Describe the two ends, with the days that they are of."""
        good, bad = (
            self.describe_at(one, Endpoint(one.label, day))
            for one, day in zip((self._good, self._bad), days, strict=True)
        )
        return good, bad

    def summarize_trials(self) -> tuple[TrialSummary, ...]:
        """Summarize every trial, in the order of the trying."""
        return tuple(map(self._summarize, self.runner.trials.values()))

    def split_other_tests(self, last_good: Candidate, first_bad: Candidate) -> tuple[list[str], list[str]]:
        """Split the other tests that flip between the ends into those that flip here too, and those that do not."""
        before, after, end = (self.runner.trials[one.label] for one in (last_good, first_bad, self._bad))
        here: list[str] = []
        elsewhere: list[str] = []
        for test in self.flip.others:
            bad = find_observation(end.runs[0], test)
            states = classify_trial(before, test, bad).state, classify_trial(after, test, bad).state
            (here if states == (State.GOOD, State.BAD) else elsewhere).append(test)
        return here, elsewhere


def follow_test(good: Candidate, bad: Candidate, runner: TrialRunner, progress: Progress) -> FollowedTest:
    """Try both ends, and follow the test that is good at one and bad at the other.

    Raises:
        NoAnswer: There is none.
    """
    ends = (("good end", good), ("bad end", bad))
    flip = find_flipping_test(*(runner.try_(candidate, summarize_end, role) for role, candidate in ends))
    if isinstance(flip, NotFound):
        raise NoAnswer(flip)
    runner.run_only([flip.test, *flip.others])
    return FollowedTest(flip, good, bad, runner, progress)


def find_flipping_test(good: Trial, bad: Trial) -> FlippingTest | NotFound:
    """Find the first test that is good at one end and bad at the other, or why there is none."""
    for label, one in ((good.label, good), (bad.label, bad)):
        if one.trouble or not any(run.observations for run in one.runs):
            reason = one.trouble or next((run.trouble for run in one.runs), "no test was run")
            return NotFound("untested end", label, reason=reason)
    found = {
        test: (classify_trial(good, test, None), classify_trial(bad, test, None)) for test in list_tests(good, bad)
    }
    states = {test: (before.state, after.state) for test, (before, after) in found.items()}
    flips = [test for test, pair in states.items() if pair == (State.GOOD, State.BAD)]
    for test in _reproduces_first(flips, bad):
        reference = find_observation(bad.runs[0], test)
        assert reference is not None
        hardware = bad.runs[0].hardware
        again = classify_trial(good, test, reference, hardware), classify_trial(bad, test, reference, hardware)
        if (again[0].state, again[1].state) == (State.GOOD, State.BAD):
            return FlippingTest(test, reference, hardware, tuple(other for other in flips if other != test))
        found[test] = again  # it ran elsewhere, or repeats fail in different ways
    return _explain_not_found(good, bad, found.values())


def _reproduces_first(tests: list[str], bad: Trial) -> list[str]:
    """Put a failure's guards behind the tests that reproduce it, where both flip: those show the failure itself."""
    seen = bad.runs[0].observations
    reproduced = {seen[test].failure for test in tests if test in seen and seen[test].side == "reproduces"}
    return sorted(
        tests, key=lambda test: test in seen and seen[test].side == "guards" and seen[test].failure in reproduced
    )


def _explain_not_found(good: Trial, bad: Trial, found: Iterable[tuple[TrialResult, TrialResult]]) -> NotFound:
    pairs = list(found)
    for label, end in ((good.label, 0), (bad.label, 1)):
        unsure = next((pair[end] for pair in pairs if pair[end].reason.startswith("flaky")), None)
        if unsure is not None:
            return NotFound("flaky end", label, reason=unsure.reason)
    seen = [(before.state, after.state) for before, after in pairs]
    if (State.BAD, State.GOOD) in seen:
        return NotFound("swapped", good.label, bad.label)
    if (State.BAD, State.BAD) in seen:
        return NotFound("fails at both", good.label, bad.label)
    for label, end in ((good.label, 0), (bad.label, 1)):
        unknown = next((pair[end] for pair in pairs if pair[end].state is State.UNKNOWN), None)
        if unknown is not None:
            return NotFound("untested end", label, reason=unknown.reason)
    return NotFound("passes at both", good.label, bad.label)


def list_tests(*trials: Trial) -> list[str]:
    """List the keys of the tests seen; files that could not be imported count where there is nothing else."""
    seen = {test: one.verdict for trial in trials for run in trial.runs for test, one in run.observations.items()}
    return [test for test in seen if "::" in test] or list(seen)


def summarize_end(trial: Trial) -> TrialSummary:
    """Summarize an end in one line: its tests by what came out of them."""
    found = [classify_trial(trial, test, None) for test in list_tests(trial)]
    state = next(
        (state for state in (State.BAD, State.GOOD) if any(one.state is state for one in found)), State.UNKNOWN
    )
    return summarize_tests(trial, state, trial.why_none)


def describe_end(candidate: Candidate, trial: Trial | None) -> Endpoint:
    """Describe an end before it is known which test is followed: what came out of the first test that is not good."""
    if trial is None:
        return Endpoint(candidate.label)
    verdict = summarize_end(trial).verdict
    if trial.trouble:
        return Endpoint(candidate.label, verdict=verdict, conflict=trial.conflict or trial.trouble)
    text = trial.why_none
    seen = (one for run in trial.runs for one in run.observations.values() if one.verdict not in GOOD_VERDICTS)
    found = [*{one.test: one for one in seen}.values()]
    if found:
        others = [f"{one.test}: {describe(one)}" for one in found[1:]]
        first = found[0].text or found[0].outcome.message
        text = "\n".join([f"{found[0].test}:", first, *others] if others else [first])
    return Endpoint(candidate.label, verdict=verdict, text=text)


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
    inside = _classify_all(among, followed)[1:-1]
    if inside and not any(inside):
        most = f"at most {plural(len(inside).bit_length(), 'trial')}, if all can be tested"
        followed.progress.say(f"{plural(len(inside), 'candidate')} between the ends: {most}")
    while True:
        states = [None if one is None else one.state for one in _classify_all(among, followed)]
        try:
            step = search.next_candidate(states)
        except NotMonotone as error:
            first, second = (among.candidates[at].label for at in (error.bad, error.good))
            raise NoAnswer(NotFound("not monotone", first, second)) from None
        if isinstance(step, search.Window):
            return _make_culprit(among, followed, step)
        followed.try_(among.candidates[step])


def _classify_all(among: OrderedCandidates, followed: FollowedTest) -> list[TrialResult | None]:
    return [followed.classify(candidate) for candidate in among.candidates]


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
