"""The measurements of the miniature step, as a test's report carries them (``rlregress_measured``)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress.goldens.key import key_of

if TYPE_CHECKING:
    from pytest_rlregress.fixtures.step_record import StepRecord, StepSettings
    from pytest_rlregress.fixtures.training_step import TrainingStep

#: What is compared with a golden, one number a step.
NUMBERS = ("loss", "grad_norm", "reward", "disagreement_before", "disagreement_after")
PROPERTY = "rlregress_measured"

Run = dict[str, Any]


def run_of(settings: StepSettings, records: Sequence[StepRecord]) -> Run:
    """Return one run's measurements as JSON values, None for what is not finite. docs/goldens.md has the keys."""
    return {
        "level": settings.level,
        "steps": len(records),
        **{name: [_finite(getattr(record, name)) for record in records] for name in NUMBERS},
        "sampled": [record.sampled for record in records],
        "step_seconds": [sum(record.seconds.values()) for record in records],
        "tokens_per_second": [record.generated_tokens / record.seconds["generate"] for record in records],
        "device_memory_bytes": max(record.device_memory for record in records),
        "host_memory_bytes": max(record.host_memory for record in records),
    }


def noted(step: TrainingStep, item: pytest.Item) -> TrainingStep:
    """Wrap the step so that each run's measurements are put on the test's reports."""
    runs: list[Run] = []

    def ran(settings: StepSettings, records: list[StepRecord]) -> None:
        runs.append(run_of(settings, records))
        others = [pair for pair in item.user_properties if pair[0] != PROPERTY]
        text = json.dumps({"key": asdict(key_of(step)), "runs": runs}, allow_nan=False)
        item.user_properties[:] = [*others, (PROPERTY, text)]

    return replace(step, ran=ran)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
