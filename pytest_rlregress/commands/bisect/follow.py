"""Find the test that is good at one end and bad at the other, and the place between them where it flips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_rlregress.commands.bisect.answer import Culprit, Endpoint, NotFound, Untested
from pytest_rlregress.failures.causes import find_cause
from pytest_rlregress.failures.observations import Observation, describe, find_first_line, is_failing, is_same_failure
from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.stack.locks import differences
from pytest_rlregress.trials import search
from pytest_rlregress.trials.pytest_run import TrialRun
from pytest_rlregress.trials.search import NotMonotone, State
from pytest_rlregress.trials.trial import Candidate, Trial, TrialRunner, TrialSummary
from pytest_rlregress.util.text import plural


class NoAnswer(Exception):
    """There is nothing to find between these ends: ``why`` says why."""

    def __init__(self, why: NotFound) -> None:
        super().__init__(why.kind)
        self.why = why


class TrialResult(NamedTuple):
    """The state of a candidate, or of one run of it, for one test, and why in one line."""

    state: State
    reason: str


@dataclass(frozen=True)
class FollowedTest:
    """A test that is good at the good end and bad at the bad end; says what it is elsewhere."""

    test: str  # its key
    bad: Observation  # what it does at the bad end: the failure that is looked for
    hardware: str  # what the bad end ran on
    others: tuple[str, ...]  # the other tests of which that is true
    runner: TrialRunner

    def classify(self, trial: Trial) -> TrialResult:
        """Say whether it is good or bad in a trial."""
        return classify_trial(trial, self.test, self.bad, self.hardware)

    def find(self, candidate: Candidate) -> TrialResult | None:
        """Say whether it is good or bad at a candidate; None before that was tried."""
        trial = self.runner.find_trial(candidate)
        return None if trial is None else self.classify(trial)

    def try_(self, candidate: Candidate) -> TrialResult:
        """Try a candidate, and report what came out."""
        return self.classify(self.runner.try_(candidate, self.summarize))

    def summarize(self, trial: Trial) -> TrialSummary:
        """Summarize a trial in one line."""
        found = self.classify(trial)
        return trial.summarize(found.state, found.reason if found.state is State.UNKNOWN else "", self.test)

    def describe(self, candidate: Candidate, label: str) -> Endpoint:
        """Describe the test as it was at a candidate."""
        trial, point = self.runner.find_trial(candidate), Endpoint(label, candidate.day, title=candidate.title)
        observation = trial.runs[0].find(self.test) if trial is not None and trial.runs else None
        if observation is None:
            return point
        text = observation.text or observation.outcome.message
        cause = find_cause(observation.outcome) if is_failing(observation) else ""
        return replace(point, verdict=observation.verdict, text=text, cause=cause)


def follow_test(good: Candidate, bad: Candidate, runner: TrialRunner) -> FollowedTest:
    """Try both ends, and follow the test that is good at one and bad at the other.

    Raises:
        NoAnswer: There is none.
    """
    before = runner.try_(good, summarize_end, "good end")
    after = runner.try_(bad, summarize_end, "bad end")
    followed = find_flipping_test(before, after, runner)
    runner.run_only([followed.test])
    return followed


def find_flipping_test(good: Trial, bad: Trial, runner: TrialRunner) -> FollowedTest:
    """Find the first test that is good at one end and bad at the other.

    Raises:
        NoAnswer: There is none.
    """
    for one in (good, bad):
        if one.trouble or not any(run.observations for run in one.runs):
            raise NoAnswer(NotFound("untested end", one.label, reason=one.why_none or "no test was run"))
    found = {
        test: (classify_trial(good, test, None), classify_trial(bad, test, None)) for test in list_tests(good, bad)
    }
    flips = [test for test, pair in found.items() if _flips(pair)]
    run = bad.runs[0]
    for test in _put_reproduces_first(flips, run.observations):
        reference = run.find(test)
        if reference is None:
            continue
        ends = good, bad
        before, after = (classify_trial(one, test, reference, run.hardware) for one in ends)
        if _flips((before, after)):
            return FollowedTest(test, reference, run.hardware, tuple(one for one in flips if one != test), runner)
        found[test] = before, after  # it ran elsewhere, or repeats fail in different ways
    raise NoAnswer(_explain_not_found(good, bad, found.values()))


def _flips(pair: tuple[TrialResult, TrialResult]) -> bool:
    return (pair[0].state, pair[1].state) == (State.GOOD, State.BAD)


def _put_reproduces_first(tests: list[str], seen: Mapping[str, Observation]) -> list[str]:
    """Put a failure's guards behind the tests that reproduce it, where both flip: those show the failure itself."""
    reproduced = {seen[test].failure for test in tests if test in seen and seen[test].side == "reproduces"}
    return sorted(
        tests, key=lambda test: test in seen and seen[test].side == "guards" and seen[test].failure in reproduced
    )


def _explain_not_found(good: Trial, bad: Trial, pairs: Iterable[tuple[TrialResult, TrialResult]]) -> NotFound:
    pairs = list(pairs)
    seen = [(before.state, after.state) for before, after in pairs]
    results = [(good.label, before) for before, _ in pairs]
    results += [(bad.label, after) for _, after in pairs]
    for label, result in results:
        if result.reason.startswith("flaky"):
            return NotFound("flaky end", label, reason=result.reason)
    if (State.BAD, State.GOOD) in seen:
        return NotFound("swapped", good.label, bad.label)
    if (State.BAD, State.BAD) in seen:
        return NotFound("fails at both", good.label, bad.label)
    for label, result in results:
        if result.state is State.UNKNOWN:
            return NotFound("untested end", label, reason=result.reason)
    return NotFound("passes at both", good.label, bad.label)


def list_tests(*trials: Trial) -> list[str]:
    """List the keys of the tests seen; files that could not be imported count where there is nothing else."""
    seen = list(dict.fromkeys(test for trial in trials for run in trial.runs for test in run.observations))
    return [test for test in seen if "::" in test] or seen


def summarize_end(trial: Trial) -> TrialSummary:
    """Summarize an end in one line: its tests by what came out of them."""
    states = {classify_trial(trial, test, None).state for test in list_tests(trial)}
    state = next((one for one in (State.BAD, State.GOOD) if one in states), State.UNKNOWN)
    return trial.summarize(state, trial.why_none)


def describe_end(candidate: Candidate, trial: Trial | None) -> Endpoint:
    """Describe an end before it is known which test is followed: what came out of the first test that is not good."""
    if trial is None:
        return Endpoint(candidate.label)
    verdict = summarize_end(trial).verdict
    if trial.trouble:
        return Endpoint(candidate.label, verdict=verdict, conflict=trial.conflict or trial.trouble)
    seen = (one for run in trial.runs for one in run.observations.values() if rank(one.verdict) is not Rank.GOOD)
    found = [*{one.test: one for one in seen}.values()]
    text = trial.why_none
    if found:
        others = [f"{one.test}: {describe(one)}" for one in found[1:]]
        first = found[0].text or found[0].outcome.message
        text = "\n".join([f"{found[0].test}:", first, *others] if others else [first])
    return Endpoint(candidate.label, verdict=verdict, text=text)


@dataclass(frozen=True)
class OrderedCandidates:
    """The candidates that a package has, from the good end to the bad end."""

    name: str
    candidates: tuple[Candidate, ...]
    repaired: bool  # whether the bad end is the older one


def find_first_bad(among: OrderedCandidates, followed: FollowedTest) -> Culprit:
    """Try candidates until the place is found where the test flips; both ends were tried.

    Raises:
        NoAnswer: A good candidate comes after a bad one.
    """
    candidates = among.candidates
    inside = len(candidates) - 2
    if inside > 0 and not any(map(followed.find, candidates[1:-1])):
        most = f"at most {plural(inside.bit_length(), 'trial')}, if all can be tested"
        followed.runner.progress.say(f"{plural(inside, 'candidate')} between the ends: {most}")
    while True:
        results = [followed.find(one) for one in candidates]
        try:
            step = search.next_candidate([one and one.state for one in results])
        except NotMonotone as error:
            first, second = (candidates[at].label for at in (error.bad, error.good))
            raise NoAnswer(NotFound("not monotone", first, second)) from None
        if isinstance(step, search.Window):
            return _make_culprit(among, followed, step, results)
        followed.try_(candidates[step])


def _make_culprit(
    among: OrderedCandidates, followed: FollowedTest, found: search.Window, results: Sequence[TrialResult | None]
) -> Culprit:
    last = among.candidates[found.last_good]
    first = among.candidates[found.first_bad]
    untested = {
        at: Untested(f"{one.name} {one.title}".strip(), result.reason)
        for at, (one, result) in enumerate(zip(among.candidates, results, strict=True))
        if result is not None and result.state is State.UNKNOWN
    }
    between = range(found.last_good + 1, found.first_bad)
    trials = (followed.runner.find_trial(end) for end in (last, first))
    before, after = (trial.lock if trial is not None else None for trial in trials)
    moved = differences(before, after) if before and after else ()
    return Culprit(
        among.name,
        followed.describe(last, last.name),
        followed.describe(first, first.name),
        among.repaired,
        between=tuple(one for at, one in untested.items() if at in between),
        moved=tuple(str(one) for one in moved if one.name != among.name),
        skipped=tuple(one for at, one in untested.items() if at not in between),
    )


# -- good or bad -------------------------------------------------------------------------------------------------------


def classify_trial(trial: Trial, test: str, bad: Observation | None, hardware: str = "") -> TrialResult:
    """Say whether one test, by its key, is good or bad in all runs of a trial, as ``compare_with_bad_end`` does."""
    if trial.trouble:
        return TrialResult(State.UNKNOWN, trial.trouble)
    runs = ((run.find(test), run) for run in trial.runs)
    return combine_runs([compare_with_bad_end(seen, run, bad, hardware) for seen, run in runs])


def compare_with_bad_end(
    observation: Observation | None, run: TrialRun, bad: Observation | None, hardware: str = ""
) -> TrialResult:
    """Compare a test in a run with the bad end: is it good, or bad in the same way?

    Args:
        observation: The test in the run; None if it was not seen there.
        run: The run.
        bad: The test at the bad end; None while the ends are being proven: any failure is bad then.
        hardware: What the bad end ran on; "" if not known.
    """
    if observation is None:
        stopped = (f"was not run: {describe(one)}" for one in run.observations.values() if one.verdict == "uncollected")
        return TrialResult(State.UNKNOWN, run.trouble or next(stopped, "no such test here"))
    if hardware and run.hardware and run.hardware != hardware:
        return TrialResult(State.UNKNOWN, f"hardware changed: {run.hardware}, the bad end ran on {hardware}")
    if rank(observation.verdict) is Rank.NOTHING:
        return TrialResult(State.UNKNOWN, f"did not run: {find_first_line(observation.outcome.message) or 'skipped'}")
    line = describe(observation)
    if not is_failing(observation):
        return TrialResult(State.GOOD, line)
    if observation.outcome.message.startswith("could not be contained: "):
        return TrialResult(State.UNKNOWN, line)
    if bad is None or is_same_failure(observation, bad):
        return TrialResult(State.BAD, line)
    return TrialResult(State.UNKNOWN, f"fails otherwise: {line}")


def combine_runs(states: Sequence[TrialResult]) -> TrialResult:
    """Combine repeated runs: what all of them say, else unknown, with the counts."""
    counts = Counter(state for state, _ in states)
    if len(counts) == 1:
        return states[0]
    if not counts:
        return TrialResult(State.UNKNOWN, "was not run")
    counted = ", ".join(f"{counts[state]} {state.value}" for state in State if counts[state])
    reason = next((f" ({reason})" for state, reason in states if state is State.UNKNOWN), "")
    return TrialResult(State.UNKNOWN, f"flaky: {counted} of {len(states)}{reason}")
