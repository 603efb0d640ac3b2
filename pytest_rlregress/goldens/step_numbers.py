"""What the miniature step measured, from a record's tests: a few numbers that can be compared from night to night."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def read_numbers(tests: Iterable[tuple[str, Mapping[str, Any] | None]]) -> dict[str, float]:
    """The numbers of one run, by name; one that was not measured, or is none, is left out.

    They are those of a test of the goldens, if one measured, else of the first test that did: of its run at token
    level, else of its first. ``step_seconds`` and ``tokens_per_second`` are medians over the steps, ``loss`` is of the
    last step, ``agreement`` the largest mean |Δ logprob| of any step, before or after the update, in nats.
    ``peak_memory_bytes`` is the device's, the host's where there is no device.

    Args:
        tests: Each with its name and its ``extra.measured`` in the record.
    """
    measured = [(name, values) for name, values in tests if values]
    preferred = sorted(measured, key=lambda test: "test_golden" not in test[0])
    runs = preferred[0][1].get("runs") if preferred else ()
    if not runs:
        return {}
    run = next((run for run in runs if run.get("level") == "token"), runs[0])

    def reduced(by: Callable[[list[float]], float], *names: str) -> float | None:
        values = [value for name in names for value in _numbers(run.get(name))]
        return by(values) if values else None

    found = {
        "step_seconds": reduced(statistics.median, "step_seconds"),
        "tokens_per_second": reduced(statistics.median, "tokens_per_second"),
        "peak_memory_bytes": reduced(max, "device_memory_bytes") or reduced(max, "host_memory_bytes"),
        "loss": reduced(lambda values: values[-1], "loss"),
        "agreement": reduced(max, "disagreement_before", "disagreement_after"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _numbers(value: object) -> list[float]:
    """The finite numbers of a list, or a single one; JSON has null for the others."""
    values: list[object] = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, (int, float)) and math.isfinite(one)]
