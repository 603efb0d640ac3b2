"""One test, followed from the failure that it has at the bad end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pytest_rlregress.bisect.answers.answer import NotFound, SeenFailure, Skipped, Tried, tried
from pytest_rlregress.bisect.answers.progress import Progress, ProgressWindow
from pytest_rlregress.bisect.ends import Ends, prove, tests
from pytest_rlregress.bisect.trials.observations import State, Trial
from pytest_rlregress.bisect.trials.runner import Candidate, TrialResult, TrialRunner, finding
from pytest_rlregress.bisect.trials.sameness import seen


class NoAnswer(Exception):
    """The question has no answer: ``why`` says why."""

    def __init__(self, why: NotFound) -> None:
        super().__init__(why.kind)
        self.why = why


class FollowedTest:
    """What candidates are to one test; says of each trial what came out.

    Attributes:
        ends: The test, and its failure.
        labels: The two ends in words.
        runner: Where candidates are tried.
    """

    def __init__(self, ends: Ends, good: Candidate, bad: Candidate, runner: TrialRunner, progress: Progress) -> None:
        self.ends, self.runner, self.labels = ends, runner, (good.label, bad.label)
        self._good, self._bad, self._progress = good, bad, progress

    def judge(self, candidate: Candidate) -> TrialResult | None:
        """What a candidate is, None before it was tried."""
        trial = self.runner.known(candidate)
        return None if trial is None else finding(trial, self.ends.test, self.ends.bad, self.ends.hardware)

    def try_(
        self,
        candidate: Candidate,
        window: Callable[[State], ProgressWindow | None],
        followers: Sequence[Candidate] = (),
    ) -> TrialResult:
        """Try a candidate, and say what came out, and what is left given that."""
        known = self.runner.known(candidate) is not None
        trial = self.runner.try_(candidate, followers)
        found = finding(trial, self.ends.test, self.ends.bad, self.ends.hardware)
        if not known:
            row = tried(trial, self.ends.test, found.state, found.reason)
            self._progress.tried(row, window(found.state), moved=trial.moved)
        return found

    def seen(self, candidate: Candidate, label: str, date: str | None = None, title: str = "") -> SeenFailure:
        """The test as it was at a candidate."""
        trial = self.runner.known(candidate)
        observation = seen(trial.runs[0], self.ends.test) if trial is not None and trial.runs else None
        if observation is None:
            return SeenFailure(label, date, title=title)
        return SeenFailure(label, date, observation.verdict, observation.text or observation.outcome.message, title)

    def points(self, days: tuple[str | None, str | None]) -> tuple[SeenFailure, SeenFailure]:
        """The two ends, with the days that they are of."""
        return self.seen(self._good, self._good.label, days[0]), self.seen(self._bad, self._bad.label, days[1])

    def tried(self) -> tuple[Tried, ...]:
        """Every trial, in the order of the trying."""
        rows = []
        for trial in self.runner.trials.values():
            found = finding(trial, self.ends.test, self.ends.bad, self.ends.hardware)
            reason = found.reason if found.state is State.UNKNOWN else ""
            rows.append(tried(trial, self.ends.test, found.state, reason))
        return tuple(rows)

    def flips_too(self, last_good: Candidate, first_bad: Candidate) -> tuple[list[str], list[str]]:
        """Of the other tests that are good at one end and bad at the other: which flip here too, and which do not."""
        before, after = self.runner.known(last_good), self.runner.known(first_bad)
        end = self.runner.known(self._bad)
        assert before is not None
        assert after is not None
        assert end is not None
        here: list[str] = []
        elsewhere: list[str] = []
        for test in self.ends.others:
            bad = seen(end.runs[0], test)
            states = finding(before, test, bad).state, finding(after, test, bad).state
            (here if states == (State.GOOD, State.BAD) else elsewhere).append(test)
        return here, elsewhere


def follow(good: Candidate, bad: Candidate, runner: TrialRunner, progress: Progress) -> FollowedTest:
    """Prove the ends: the test that is good at one and bad at the other.

    Raises:
        NoAnswer: There is none.
    """
    trials = []
    for role, candidate in (("good end", good), ("bad end", bad)):
        known = runner.known(candidate) is not None
        trial = runner.try_(candidate)
        trials.append(trial)
        if not known:
            progress.tried(summary(trial), role=role, moved=trial.moved)
    ends = prove(*trials)
    if isinstance(ends, NotFound):
        raise NoAnswer(ends)
    runner.narrow([ends.test, *ends.others])
    return FollowedTest(ends, good, bad, runner, progress)


def summary(trial: Trial) -> Tried:
    """An end in one line: its tests by what came out of them."""
    found = [finding(trial, test, None) for test in tests(trial)]
    state = next(
        (state for state in (State.BAD, State.GOOD) if any(one.state is state for one in found)), State.UNKNOWN
    )
    counts = Counter(one.verdict for run in trial.runs for one in run.observations.values())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    reason = trial.trouble or next((run.trouble for run in trial.runs if run.trouble), "")
    return Tried(trial.label, state, verdicts, trial.seconds, len(trial.runs), reason)


def skipped(labelled: Iterable[tuple[str, TrialResult | None]]) -> tuple[Skipped, ...]:
    """Those that say nothing, with the reason."""
    return tuple(
        Skipped(label, found.reason if found else "not tried")
        for label, found in labelled
        if found is None or found.state is State.UNKNOWN
    )
