"""Compare what training steps measured before an upgrade and after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.fixtures.step_key import Key
from pytest_rlregress.fixtures.step_measurements import MINIATURE, Run
from pytest_rlregress.goldens import golden, step_numbers
from pytest_rlregress.goldens.comparison import compare
from pytest_rlregress.trials.observations import Trial, TrialRun
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


@dataclass(frozen=True)
class StepChange:
    """What an upgrade does to the numbers of the training steps.

    Attributes:
        numbers: Those that were measured before and after.
        outside: What is outside the tolerances of the goldens of before, each in a line.
        judged_by: Their steps and keys in words; "" where there is none, so that nothing says what is usual.
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

    The goldens of the hardware and stack of before say what is usual. They decide nothing: on another stack the tests
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
        StepNumber(_words(name), was[name] / _unit(name), is_[name] / _unit(name))
        for name in sorted(was.keys() & is_.keys(), key=_rank)
    )
    key, outside = _judge(*runs, common)
    return StepChange(numbers, outside, key) if numbers else None


def _words(name: str) -> str:
    step, number = step_numbers.split_name(name)
    words, _ = _SHOWN[number]
    return words if step == MINIATURE else f"{step}: {words}"


def _unit(name: str) -> int:
    return _SHOWN[step_numbers.split_name(name)[1]][1]


def _rank(name: str) -> tuple[bool, str, int]:
    step, number = step_numbers.split_name(name)
    return step != MINIATURE, step, list(_SHOWN).index(number)


def _judge(before: TrialRun, after: TrialRun, tests: list[str]) -> tuple[str, tuple[str, ...]]:
    """Compare what a test measured after an upgrade with the golden of before: its keys, and what is outside.

    Of each step that has one: the first test whose runs are of as many steps as the golden's.
    """
    judged: dict[str, Key] = {}
    outside: list[str] = []
    for test in tests:
        measured, now = before.observations[test].measured, after.observations[test].measured
        assert measured is not None
        assert now is not None
        first = measured["runs"][0]
        key, step = Key(**first.get("key", measured["key"])), first.get("step", MINIATURE)
        try:
            found = golden.find(Path(before.goldens), step, key)
        except golden.GoldenError:  # its own test says so
            continue
        if found is None or step in judged or not _comparable(found, now["runs"]):
            continue
        result = compare(found, found.settings, now["runs"])
        judged[step] = key
        outside += [f"{step}, {line}" for line in result.differences]
    return "; ".join(f"{step}, {key}" for step, key in judged.items()), tuple(outside)


def _comparable(recorded: golden.Golden, runs: list[Run]) -> bool:
    """Whether runs are what a golden was recorded from: each of its variants, with as many steps."""
    return {(run["variant"], run["steps"]) for run in runs} == {(run["variant"], run["steps"]) for run in recorded.runs}
