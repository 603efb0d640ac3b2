"""Find the test that is good at one end and bad at the other, or why there is none. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_rlregress.bisect.answer import NotFound
from pytest_rlregress.trials import failure_comparison
from pytest_rlregress.trials.runner import TrialResult, classify_trial
from pytest_rlregress.trials.trial import Observation, State, Trial


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
        reference = failure_comparison.find_observation(bad.runs[0], test)
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
