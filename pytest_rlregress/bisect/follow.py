"""Follow one test through the candidates, by the failure that it has at the bad end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_rlregress.bisect.answer import Endpoint, NotFound
from pytest_rlregress.bisect.flip import FlippingTest, find_flipping_test, list_tests
from pytest_rlregress.trials.failure_comparison import describe, find_observation
from pytest_rlregress.trials.progress import Progress, ProgressWindow
from pytest_rlregress.trials.runner import Candidate, TrialResult, TrialRunner, classify_trial
from pytest_rlregress.trials.summaries import TrialSummary, summarize_tests, summarize_trial
from pytest_rlregress.trials.trial import GOOD_VERDICTS, State, Trial


class NoAnswer(Exception):
    """There is nothing to find between these ends: ``why`` says why."""

    def __init__(self, why: NotFound) -> None:
        super().__init__(why.kind)
        self.why = why


class FollowedTest:
    """Tries candidates, and says whether one test is good or bad there.

    Attributes:
        flip: The test, and its failure at the bad end.
        labels: The two ends in words.
        runner: Where candidates are tried.
    """

    def __init__(
        self, flip: FlippingTest, good: Candidate, bad: Candidate, runner: TrialRunner, progress: Progress
    ) -> None:
        self.flip, self.runner, self.labels = flip, runner, (good.label, bad.label)
        self._good, self._bad, self._progress = good, bad, progress

    def classify(self, candidate: Candidate) -> TrialResult | None:
        """Say whether a candidate is good or bad; None before it was tried."""
        trial = self.runner.find_trial(candidate)
        return None if trial is None else self._classify(trial)

    def _classify(self, trial: Trial) -> TrialResult:
        return classify_trial(trial, self.flip.test, self.flip.bad, self.flip.hardware)

    def try_(self, candidate: Candidate, window: Callable[[State], ProgressWindow | None]) -> TrialResult:
        """Try a candidate, and report what came out and what is left to try given that."""
        known = self.runner.find_trial(candidate) is not None
        trial = self.runner.try_(candidate)
        found = self._classify(trial)
        if not known:
            row = summarize_trial(trial, self.flip.test, found.state, found.reason)
            self._progress.report_trial(row, window(found.state), moved=trial.moved)
        return found

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
        rows = []
        for trial in self.runner.trials.values():
            found = self._classify(trial)
            reason = found.reason if found.state is State.UNKNOWN else ""
            rows.append(summarize_trial(trial, self.flip.test, found.state, reason))
        return tuple(rows)

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
    trials = []
    for role, candidate in (("good end", good), ("bad end", bad)):
        known = runner.find_trial(candidate) is not None
        trial = runner.try_(candidate)
        trials.append(trial)
        if not known:
            progress.report_trial(summarize_end(trial), role=role, moved=trial.moved)
    flip = find_flipping_test(*trials)
    if isinstance(flip, NotFound):
        raise NoAnswer(flip)
    runner.run_only([flip.test, *flip.others])
    return FollowedTest(flip, good, bad, runner, progress)


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
        text = "\n".join([*[f"{found[0].test}:"] * bool(others), found[0].text or found[0].outcome.message, *others])
    return Endpoint(candidate.label, verdict=verdict, text=text)
