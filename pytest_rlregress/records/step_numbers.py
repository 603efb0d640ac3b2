"""What training steps measured, from a record's tests: a few numbers that can be compared from night to night."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_rlregress.records.measurements import MINIATURE

Run = Mapping[str, Any]

#: The variant that a step's numbers are those of, where it was measured.
_MAIN = {MINIATURE: "token", "trl-step": "colocate", "verl-step": "legacy"}
#: Names of what engine and trainer differ by.
_AGREEMENT = ("agreement", "disagreement_before", "disagreement_after", "log_ppl_abs_diff")


def read_numbers(tests: Iterable[tuple[str, Mapping[str, Any] | None]]) -> dict[str, float]:
    """Return the numbers of one run of pytest, by name; one that was not measured, or isn't a number, is left out.

    Each step's are those of a test of the goldens, if one measured, else of the first test that did: of its main
    variant, else of its first. ``step_seconds`` and ``tokens_per_second`` are medians over the steps, ``loss`` is of
    the last step, ``agreement`` the largest mean |Δ logprob| of any step, before or after the update, in nats.
    ``peak_memory_bytes`` is the device's, the host's where there is no device. The names are the miniature step's;
    another step's has the step before it, as in ``trl-step loss``: :func:`split_name`.

    Args:
        tests: Each with its name and its ``extra.measured`` in the record.
    """
    measured = [(name, values) for name, values in tests if values]
    preferred = sorted(measured, key=lambda test: "test_golden" not in test[0])
    by_step: dict[str, list[Run]] = {}
    for _, values in preferred:
        of_test: dict[str, list[Run]] = {}
        listed = values.get("runs")
        for measured_run in listed if isinstance(listed, list) else ():
            run: Run = measured_run if isinstance(measured_run, dict) else {}
            of_test.setdefault(str(run.get("step", MINIATURE)), []).append(run)
        for step, runs in of_test.items():
            by_step.setdefault(step, runs)
    found: dict[str, float] = {}
    for step, runs in by_step.items():
        run = next((run for run in runs if run.get("variant") == _MAIN.get(step)), runs[0])
        found |= {name if step == MINIATURE else f"{step} {name}": value for name, value in _reduced(run).items()}
    return found


def split_name(name: str) -> tuple[str, str]:
    """Return the step of a name of :func:`read_numbers`, and the name without it."""
    step, _, number = name.rpartition(" ")
    return step or MINIATURE, number


def _reduced(run: Run) -> dict[str, float]:
    def reduced(by: Callable[[list[float]], float], *names: str) -> float | None:
        values = [value for name in names for value in _numbers(run.get(name))]
        return by(values) if values else None

    found = {
        "step_seconds": reduced(statistics.median, "step_seconds"),
        "tokens_per_second": reduced(statistics.median, "tokens_per_second"),
        "peak_memory_bytes": reduced(max, "device_memory_bytes") or reduced(max, "host_memory_bytes"),
        "loss": reduced(lambda values: values[-1], "loss"),
        "agreement": reduced(max, *_AGREEMENT),
    }
    return {name: value for name, value in found.items() if value is not None}


def _numbers(value: object) -> list[float]:
    """Return the finite numbers of a list, or a single one; JSON has null for the others."""
    values: list[object] = value if isinstance(value, list) else [value]
    numbers = [float(one) for one in values if isinstance(one, float) or (isinstance(one, int) and abs(one) < 2**64)]
    return [one for one in numbers if math.isfinite(one)]
