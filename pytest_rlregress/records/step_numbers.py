"""What training steps measured, from a record's tests: a few numbers that can be compared from night to night."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_rlregress.records.measurements import MINIATURE

Run = Mapping[str, Any]

#: The variant that a step's numbers are those of, where it was measured.
_MAIN = {MINIATURE: "token", "trl-step": "colocate", "verl-step": "legacy"}
#: Each number, and the keys of a run that it is read from.
_KEYS = {
    "step_seconds": ("step_seconds",),
    "tokens_per_second": ("tokens_per_second",),
    "peak_memory_bytes": ("device_memory_bytes", "host_memory_bytes"),
    "loss": ("loss",),
    "grad_norm": ("grad_norm",),
    "reward": ("reward",),
    "agreement": ("agreement", "disagreement_before", "disagreement_after", "log_ppl_abs_diff"),
    "kl": ("k3_kl",),
}


@dataclass(frozen=True)
class MeasuredStep:
    """The numbers of one step in one test.

    Attributes:
        variant: Of the test's runs of this step the main one, or the first.
        length: How many steps were trained.
        numbers: By name, reduced over the steps; only finite values count.
        broken: Names of numbers of which a value is null or not finite.
    """

    test: str
    step: str
    variant: str
    length: int
    numbers: Mapping[str, float]
    broken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JudgedNumber:
    """A number of a training step in one run, beside what its trusted nights allow.

    Attributes:
        name: With its step: ``trl-step grad_norm``.
        value: NaN where it is missing or not finite.
        low: End of the corridor, in the number's own unit; NaN while nights are only watched. So is ``high``.
        nights: Trusted nights before its own.
    """

    name: str
    value: float
    low: float
    high: float
    nights: int


def read_steps(tests: Iterable[tuple[str, Mapping[str, Any] | None]]) -> list[MeasuredStep]:
    """Return each step that tests measured, those of the goldens first.

    ``step_seconds`` and ``tokens_per_second`` are medians over the steps, ``loss`` is the last step's, ``grad_norm``,
    ``reward`` and ``kl`` are the first step's, ``agreement`` is the largest mean |Δ logprob| of any step, before or
    after the update, in nats. ``kl`` is verl's k3 estimate between engine and trainer. ``peak_memory_bytes`` is the
    device's, the host's where there is no device.

    Args:
        tests: Each with its name and its ``extra.measured`` in the record.
    """
    found = []
    for name, values in tests:
        listed = (values or {}).get("runs")
        runs: list[Run] = [run for run in listed if isinstance(run, dict)] if isinstance(listed, list) else []
        by_step: dict[str, list[Run]] = {}
        for run in runs:
            by_step.setdefault(str(run.get("step", MINIATURE)), []).append(run)
        for step, some in by_step.items():
            run = next((run for run in some if run.get("variant") == _MAIN.get(step)), some[0])
            broken = frozenset(number for number, keys in _KEYS.items() if any(map(_is_broken, map(run.get, keys))))
            length = run.get("steps")
            found.append(
                MeasuredStep(
                    test=name,
                    step=step,
                    variant=str(run.get("variant", "")),
                    length=length if isinstance(length, int) else 0,
                    numbers=_reduce(run),
                    broken=broken,
                )
            )
    return sorted(found, key=lambda step: "test_golden" not in step.test)


def name_numbers(steps: Iterable[MeasuredStep]) -> dict[str, float]:
    """Return the numbers of one run of pytest, by name: for each step those of the first test that measured it.

    The names are the miniature step's; another step's has the step before it, as in ``trl-step loss``:
    :func:`split_name`.
    """
    first: dict[str, MeasuredStep] = {}
    for step in steps:
        first.setdefault(step.step, step)
    return {
        name if step.step == MINIATURE else f"{step.step} {name}": value
        for step in first.values()
        for name, value in step.numbers.items()
    }


def split_name(name: str) -> tuple[str, str]:
    """Return the step of a name of :func:`name_numbers`, and the name without it."""
    step, _, number = name.rpartition(" ")
    return step or MINIATURE, number


def _reduce(run: Run) -> dict[str, float]:
    def reduced(by: Callable[[list[float]], float], *keys: str) -> float | None:
        values = [value for key in keys for value in _numbers(run.get(key))]
        return by(values) if values else None

    found = {
        "step_seconds": reduced(statistics.median, "step_seconds"),
        "tokens_per_second": reduced(statistics.median, "tokens_per_second"),
        "peak_memory_bytes": reduced(max, "device_memory_bytes") or reduced(max, "host_memory_bytes"),
        "loss": reduced(_last, "loss"),
        "grad_norm": reduced(_first, "grad_norm"),
        "reward": reduced(_first, "reward"),
        "agreement": reduced(max, *_KEYS["agreement"]),
        "kl": reduced(_first, "k3_kl"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _first(values: list[float]) -> float:
    return values[0]


def _last(values: list[float]) -> float:
    return values[-1]


def _is_broken(value: object) -> bool:
    """Return whether a list has a value that isn't a finite number: JSON has null for those."""
    return isinstance(value, list) and len(_numbers(value)) < len(value)


def _numbers(value: object) -> list[float]:
    """Return the finite numbers of a list, or a single one."""
    values: list[object] = value if isinstance(value, list) else [value]
    numbers = [float(one) for one in values if isinstance(one, float) or (isinstance(one, int) and abs(one) < 2**64)]
    return [one for one in numbers if math.isfinite(one)]
