"""What a sign found in a run's metrics: the numbers, what they may mean, and what would confirm it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_rlregress.diagnose.metrics.series import Series

_SHOWN = 10

Confidence = Literal["certain", "possible"]


@dataclass(frozen=True)
class MetricFinding:
    """A sign of documented failures in the metrics of a run.

    Attributes:
        sign: What it is called.
        what: The numbers, in a sentence.
        ids: The failures that give such numbers, the likelier first.
        confidence: "certain" where nothing else is known to give them, else "possible".
        means: What the numbers mean.
        confirm: What would tell which failure it is, or that it is none.
        series: The numbers that it stands on.
        log: Where they are.
    """

    sign: str
    what: str
    ids: tuple[str, ...]
    confidence: Confidence
    means: str
    confirm: str
    series: Series
    log: str = ""

    def shown(self) -> list[tuple[int, float]]:
        """Return the steps and their values, of many the first and the last."""
        pairs = list(self.series)
        return pairs if len(pairs) <= 2 * _SHOWN else [*pairs[:_SHOWN], *pairs[-_SHOWN:]]


def steps_of(series: Series) -> str:
    """Return the steps of a series in words."""
    if len(series) == 1:
        return f"step {series.steps[0]}"
    first, last = min(series.steps), max(series.steps)
    return f"{len(series)} steps ({first} to {last})"


def number(value: float) -> str:
    """Return a value as it is shown: three digits."""
    return f"{value:.3g}"
