"""Compare what training steps measured before an upgrade and after it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlregress.commands.trials.trial import Trial
from pytest_rlregress.fixtures.step_measurements import MINIATURE
from pytest_rlregress.goldens import step_numbers
from pytest_rlregress.util.units import GIB


@dataclass(frozen=True)
class StepNumber:
    """A number of a training step before and after an upgrade, in words and as it was measured.

    Attributes:
        name: In words, with its unit.
        before: What was measured before.
        after: What was measured after.
    """

    name: str
    before: float
    after: float


#: What is shown of ``step_numbers.read_numbers``: name -> in words, and by what it is divided.
_SHOWN = {
    "agreement": ("agreement, max mean |Δ logprob|", 1),
    "loss": ("loss of the last step", 1),
    "step_seconds": ("seconds a step", 1),
    "tokens_per_second": ("tokens per second", 1),
    "peak_memory_bytes": ("peak memory, GiB", GIB),
}


def compare_steps(before: Trial, after: Trial) -> tuple[StepNumber, ...]:
    """Compare the numbers of the tests that measured some in both trials, in the first run of each."""
    if not (before.runs and after.runs):
        return ()
    runs = before.runs[0].observations, after.runs[0].observations
    common = [test for test, one in runs[0].items() if one.measured and test in runs[1] and runs[1][test].measured]
    was, is_ = (step_numbers.read_numbers([(test, run[test].measured) for test in common]) for run in runs)
    return tuple(
        StepNumber(_words(name), was[name] / _unit(name), is_[name] / _unit(name))
        for name in sorted(was.keys() & is_.keys(), key=_rank)
    )


def _words(name: str) -> str:
    step, number = step_numbers.split_name(name)
    words, _ = _SHOWN[number]
    return words if step == MINIATURE else f"{step}: {words}"


def _unit(name: str) -> int:
    return _SHOWN[step_numbers.split_name(name)[1]][1]


def _rank(name: str) -> tuple[bool, str, int]:
    step, number = step_numbers.split_name(name)
    return step != MINIATURE, step, list(_SHOWN).index(number)
