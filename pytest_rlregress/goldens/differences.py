"""Measure how far runs of the step differ, and derive tolerances from that. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pytest_rlregress.fixtures.step_measurements import Run, numbers_of

#: A tolerance is so many times the largest difference between the runs of a recording: docs/goldens.md has why.
FACTOR = 4


@dataclass(frozen=True)
class Difference:
    """The difference of one number of a run from the recorded one.

    Attributes:
        tokens: Over the steps up to which the ``same`` tokens were drawn, or over those after that: ``other``.
        step: The one where it differs most, counted from 1.
        largest: max |Δ|; infinite where a number is not finite.
        drift: The sum of Δ, divided by all the steps of the run: their mean, where all drew the same tokens.
    """

    number: str
    tokens: str
    step: int
    expected: float | None
    found: float | None
    largest: float
    drift: float


def differences(recorded: Run, run: Run) -> list[Difference]:
    """Measure each number's difference over the common steps, those with the same tokens and the others apart."""
    steps = min(recorded["steps"], run["steps"])
    same = agreeing(recorded, run)
    common = [name for name in numbers_of(recorded) if name in numbers_of(run)]
    found = []
    for tokens, part in (("same", range(same)), ("other", range(same, steps))):
        for number in common if part else ():
            expected, values = recorded[number], run[number]
            deltas = {index: _delta(expected[index], values[index]) for index in part}
            worst = max(deltas, key=lambda index: abs(deltas[index]))
            drift = sum(deltas.values()) / steps
            found.append(
                Difference(number, tokens, worst + 1, expected[worst], values[worst], abs(deltas[worst]), drift)
            )
    return found


def agreeing(recorded: Run, run: Run) -> int:
    """Count the first steps in which both runs drew the same tokens; none where that is not known."""
    pairs = zip(recorded.get("sampled", ()), run.get("sampled", ()), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _delta(expected: float | None, found: float | None) -> float:
    return math.inf if expected is None or found is None else found - expected


def tolerances(
    recorded: Sequence[Run], repeated: Iterable[Run], perturbed: Iterable[Run], others: Iterable[Run]
) -> dict[str, dict[str, dict[str, float]]]:
    """Derive the tolerances: FACTOR times the largest difference that was measured.

    Args:
        recorded: The runs of a golden, one a variant.
        repeated: The same again.
        perturbed: The same from weights that differ in the last bit.
        others: Runs with another seed, which drew other tokens from the start.

    Returns:
        As ``Golden.tolerances``; without ``same`` where no perturbed run drew the same tokens, as in a coarse dtype:
        how far rounding alone takes the numbers is not known then.
    """
    by_variant = {run["variant"]: run for run in recorded}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for runs in (perturbed, others, repeated):
        for one in [one for run in runs for one in differences(by_variant[run["variant"]], run)]:
            if runs is repeated and one.tokens not in found:
                continue
            limits = found.setdefault(one.tokens, {}).setdefault(one.number, {"max": 0.0, "drift": 0.0})
            limits["max"] = max(limits["max"], FACTOR * one.largest)
            limits["drift"] = max(limits["drift"], FACTOR * abs(one.drift))
    return found
