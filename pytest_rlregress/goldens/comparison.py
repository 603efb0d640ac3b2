"""Compare a step's runs with their golden, and derive a golden's tolerances. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pytest_rlregress.records.measurements import Run, numbers_of

if TYPE_CHECKING:
    from pytest_rlregress.goldens.golden import Golden

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
    """Describe each limit that a difference exceeds."""
    found, expected = ("not finite" if value is None else f"{value:.7g}" for value in (one.found, one.expected))
    told = []
    if one.largest > limits["max"]:
        told.append(
            f"{one.number} of step {one.step} is {found}, the golden's {expected}: "
            f"|Δ| {one.largest:.2g}, tolerance {limits['max']:.2g}"
        )
    if limits["drift"] < abs(one.drift) < math.inf:
        told.append(f"{one.number} drifts: mean Δ {one.drift:+.2g}, tolerance {limits['drift']:.2g}")
    return told


def _share(value: float, limit: float) -> float:
    return value / limit if limit else math.inf if value else 0.0


def list_moved(origin: Mapping[str, Any], versions: Mapping[str, str]) -> list[str]:
    """List in a line what is installed in another version than when a golden was recorded."""
    then: Mapping[str, str] = origin.get("versions", {})
    changed = [
        f"{name} {was} -> {versions.get(name, 'none')}" for name, was in then.items() if versions.get(name) != was
    ]
    return [f"installed since then: {', '.join(changed)}"] if changed else []
