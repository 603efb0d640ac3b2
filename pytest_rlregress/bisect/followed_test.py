"""One test, followed from the failure that it has at the bad end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pytest_rlregress.bisect.answers.answer import Endpoint, NotFound, TrialSummary, Untested, summarize_trial
from pytest_rlregress.bisect.answers.progress import Progress, ProgressWindow
from pytest_rlregress.bisect.flipping_test import FlippingTest, find_flipping_test, list_tests
from pytest_rlregress.bisect.trials.failure_comparison import find_observation
from pytest_rlregress.bisect.trials.observations import State, Trial
from pytest_rlregress.bisect.trials.runner import Candidate, TrialResult, TrialRunner, classify_trial


class NoAnswer(Exception):
    """The question has no answer: ``why`` says why."""

    def __init__(self, why: NotFound) -> None:
        super().__init__(why.kind)
        self.why = why


class FollowedTest:
    """What candidates are to one test; says of each trial what came out.

    Attributes:
        flip: The test, and its failure.
        labels: The two ends in words.
        runner: Where candidates are tried.
    """

    def __init__(
        self, flip: FlippingTest, good: Candidate, bad: Candidate, runner: TrialRunner, progress: Progress
    ) -> None:
        self.flip, self.runner, self.labels = flip, runner, (good.label, bad.label)
        self._good, self._bad, self._progress = good, bad, progress

    def classify(self, candidate: Candidate) -> TrialResult | None:
        """What a candidate is, None before it was tried."""
        trial = self.runner.find_trial(candidate)
        return None if trial is None else classify_trial(trial, self.flip.test, self.flip.bad, self.flip.hardware)

    def try_(
        self,
        candidate: Candidate,
        window: Callable[[State], ProgressWindow | None],
        followers: Sequence[Candidate] = (),
    ) -> TrialResult:
        """Try a candidate, and say what came out, and what is left given that."""
        known = self.runner.find_trial(candidate) is not None
        trial = self.runner.try_(candidate, followers)
        found = classify_trial(trial, self.flip.test, self.flip.bad, self.flip.hardware)
        if not known:
            row = summarize_trial(trial, self.flip.test, found.state, found.reason)
            self._progress.report_trial(row, window(found.state), moved=trial.moved)
        return found

    def describe_at(self, candidate: Candidate, label: str, date: str | None = None, title: str = "") -> Endpoint:
        """The test as it was at a candidate."""
        trial = self.runner.find_trial(candidate)
        observation = find_observation(trial.runs[0], self.flip.test) if trial is not None and trial.runs else None
        if observation is None:
            return Endpoint(label, date, title=title)
        return Endpoint(label, date, observation.verdict, observation.text or observation.outcome.message, title)

    def describe_ends(self, days: tuple[str | None, str | None]) -> tuple[Endpoint, Endpoint]:
        """The two ends, with the days that they are of."""
        return self.describe_at(self._good, self._good.label, days[0]), self.describe_at(
            self._bad, self._bad.label, days[1]
        )

    def summarize_trials(self) -> tuple[TrialSummary, ...]:
        """Every trial, in the order of the trying."""
        rows = []
        for trial in self.runner.trials.values():
            found = classify_trial(trial, self.flip.test, self.flip.bad, self.flip.hardware)
            reason = found.reason if found.state is State.UNKNOWN else ""
            rows.append(summarize_trial(trial, self.flip.test, found.state, reason))
        return tuple(rows)

    def split_other_tests(self, last_good: Candidate, first_bad: Candidate) -> tuple[list[str], list[str]]:
        """Of the other tests that are good at one end and bad at the other: which flip here too, and which do not."""
        before, after = self.runner.find_trial(last_good), self.runner.find_trial(first_bad)
        end = self.runner.find_trial(self._bad)
        assert before is not None
        assert after is not None
        assert end is not None
        here: list[str] = []
        elsewhere: list[str] = []
        for test in self.flip.others:
            bad = find_observation(end.runs[0], test)
            states = classify_trial(before, test, bad).state, classify_trial(after, test, bad).state
            (here if states == (State.GOOD, State.BAD) else elsewhere).append(test)
        return here, elsewhere


def follow_test(good: Candidate, bad: Candidate, runner: TrialRunner, progress: Progress) -> FollowedTest:
    """Prove the ends: the test that is good at one and bad at the other.

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
    ends = find_flipping_test(*trials)
    if isinstance(ends, NotFound):
        raise NoAnswer(ends)
    runner.run_only([ends.test, *ends.others])
    return FollowedTest(ends, good, bad, runner, progress)


def summarize_end(trial: Trial) -> TrialSummary:
    """An end in one line: its tests by what came out of them."""
    found = [classify_trial(trial, test, None) for test in list_tests(trial)]
    state = next(
        (state for state in (State.BAD, State.GOOD) if any(one.state is state for one in found)), State.UNKNOWN
    )
    counts = Counter(one.verdict for run in trial.runs for one in run.observations.values())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    reason = trial.trouble or next((run.trouble for run in trial.runs if run.trouble), "")
    return TrialSummary(trial.label, state, verdicts, trial.seconds, len(trial.runs), reason)


def list_untested(labelled: Iterable[tuple[str, TrialResult | None]]) -> tuple[Untested, ...]:
    """Those that say nothing, with the reason."""
    return tuple(
        Untested(label, found.reason if found else "not tried")
        for label, found in labelled
        if found is None or found.state is State.UNKNOWN
    )
