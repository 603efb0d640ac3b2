"""Compare what the miniature step measured before an upgrade and after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.goldens import golden, step_numbers
from pytest_rlregress.goldens.comparison import compare
from pytest_rlregress.trials.observations import Trial, TrialRun
from pytest_rlregress.util.units import GIB


@dataclass(frozen=True)
class StepNumber:
    """A number of the training step before and after an upgrade, in words and as it was measured.

    Attributes:
        name: In words, with its unit.
        before: What was measured before.
        after: What was measured after.
    """

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class StepChange:
    """What an upgrade does to the numbers of the training step.

    Attributes:
        numbers: Those that were measured before and after.
        outside: What is outside the tolerances and bands of the golden of before, each in a line.
        judged_by: That golden's key in words; "" where there is none, so that nothing says what is usual.
    """

    numbers: tuple[StepNumber, ...]
    outside: tuple[str, ...] = ()
    judged_by: str = ""


#: What is shown of ``step_numbers.read_numbers``: name -> in words, and by what it is divided.
_SHOWN = {
    "agreement": ("agreement, max mean |Δ logprob|", 1),
    "loss": ("loss of the last step", 1),
    "step_seconds": ("seconds a step", 1),
    "tokens_per_second": ("tokens per second", 1),
    "peak_memory_bytes": ("peak memory, GiB", GIB),
}


def compare_steps(before: Trial, after: Trial) -> StepChange | None:
    """Compare the numbers of the tests that measured some in both trials, in the first run of each; None for none.

    The golden of the hardware and stack of before says what is usual. It decides nothing: on another stack the tests
    have their own tolerances, and where the key is the same the golden's own test has its verdict.
    """
    if not (before.runs and after.runs):
        return None
    runs = before.runs[0], after.runs[0]
    common = [
        test
        for test, one in runs[0].observations.items()
        if one.measured and test in runs[1].observations and runs[1].observations[test].measured
    ]
    was, is_ = (step_numbers.read_numbers([(test, run.observations[test].measured) for test in common]) for run in runs)
    numbers = tuple(
        StepNumber(words, was[name] / unit, is_[name] / unit)
        for name, (words, unit) in _SHOWN.items()
        if name in was and name in is_
    )
    key, outside = _judge(*runs, [test for test in common if "test_golden" in test])
    return StepChange(numbers, outside, key) if numbers else None


def _judge(before: TrialRun, after: TrialRun, tests: list[str]) -> tuple[str, tuple[str, ...]]:
    """Compare the golden's test after an upgrade with the golden of before: its key, and what is outside."""
    for test in tests:
        measured, now = before.observations[test].measured, after.observations[test].measured
        assert measured is not None
        assert now is not None
        key = Key(**measured["key"])
        try:
            found = golden.find(Path(before.goldens), key)
        except golden.GoldenError:  # its own test says so
            continue
        if found is not None:
            result = compare(found, found.settings, now["runs"])
            return str(key), (*result.differences, *result.unusual)
    return "", ()
