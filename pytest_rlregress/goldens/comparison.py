"""Compare a step's runs with their golden. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_rlregress.fixtures.step_measurements import Run, numbers_of
from pytest_rlregress.goldens.differences import Difference, agreeing, differences
from pytest_rlregress.goldens.golden import Golden


@dataclass(frozen=True)
class GoldenComparison:
    """The result of a comparison with a golden.

    Attributes:
        differences: Each in a line; none if the numbers agree.
        notes: What else there is to know, each in a line.
        used: How much of a tolerance was used at most, 1 for all of it: by ``max`` and ``drift``.
    """

    differences: tuple[str, ...]
    notes: tuple[str, ...] = ()
    used: Mapping[str, float] = field(default_factory=dict)


def compare(golden: Golden, settings: Mapping[str, Any], runs: Sequence[Run]) -> GoldenComparison:
    """Compare runs of a step, one a variant, with the golden of their key."""
    was = golden.settings
    pairs = {name: (was.get(name, "none"), settings.get(name, "none")) for name in {**was, **settings}}
    moved = [f"{name} {before} -> {now}" for name, (before, now) in pairs.items() if before != now]
    if moved:
        return GoldenComparison((f"it is of a step with other settings ({', '.join(moved)}): record it again",))
    told: list[str] = []
    notes: list[str] = []
    used = {"max": 0.0, "drift": 0.0}
    measured = {run["variant"]: run for run in runs}
    recorded = {run["variant"]: run for run in golden.runs}
    for variant in sorted(measured.keys() ^ recorded.keys()):
        told.append(f"{variant}: {'there is none in the golden' if variant in measured else 'was not measured'}")
    for variant in [variant for variant in recorded if variant in measured]:
        before, now = recorded[variant], measured[variant]
        for name in sorted({*numbers_of(before)} ^ {*numbers_of(now)}):
            told.append(f"{variant}: {name} {'is not in the golden' if name in now else 'was not measured'}")
        if now["steps"] != before["steps"]:
            told.append(f"{variant}: {now['steps']} steps, the golden has {before['steps']}")
        same = agreeing(before, now)
        if same < min(now["steps"], before["steps"]):
            notes.append(f"{variant}: in step {same + 1} or after it other tokens were drawn; it is compared as such")
        for one in differences(before, now):
            limits = golden.tolerances.get(one.tokens, golden.tolerances["other"])[one.number]
            told += [f"{variant}: {line}" for line in _exceeds(one, limits)]
            shares = {"max": _share(one.largest, limits["max"]), "drift": _share(abs(one.drift), limits["drift"])}
            used = {name: max(used[name], share) for name, share in shares.items()}
    return GoldenComparison(tuple(told), tuple(notes), used)


def _exceeds(one: Difference, limits: Mapping[str, float]) -> list[str]:
    """Describe what of a difference is more than allowed."""
    if one.expected is None:
        found = (
            "is not finite, nor is the golden's"
            if one.found is None
            else f"is {one.found:.7g}, the golden's is not finite"
        )
        return [f"{one.number} of step {one.step} {found}"]
    if one.found is None:
        return [f"{one.number} of step {one.step} is not finite, the golden's is {one.expected:.7g}"]
    told = []
    if one.largest > limits["max"]:
        told.append(
            f"{one.number} of step {one.step} is {one.found:.7g}, the golden's {one.expected:.7g}: "
            f"|Δ| {one.largest:.2g}, tolerance {limits['max']:.2g}"
        )
    if abs(one.drift) > limits["drift"]:
        told.append(f"{one.number} drifts: mean Δ {one.drift:+.2g}, tolerance {limits['drift']:.2g}")
    return told


def _share(value: float, limit: float) -> float:
    return value / limit if limit else math.inf if value else 0.0


def moved(origin: Mapping[str, Any], versions: Mapping[str, str]) -> list[str]:
    """List in a line what is installed in another version than when a golden was recorded."""
    then: Mapping[str, str] = origin.get("versions", {})
    changed = [
        f"{name} {was} -> {versions.get(name, 'none')}" for name, was in then.items() if versions.get(name) != was
    ]
    return [f"installed since then: {', '.join(changed)}"] if changed else []
