"""Choose which upgrades to try next, so that the set known to be good grows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pytest_rlregress.commands.trials import search
from pytest_rlregress.commands.trials.search import NONE, NextSet, Units
from pytest_rlregress.commands.trials.trial import State


@dataclass(frozen=True)
class LargestSet:
    """A set of units that was seen to be good and to which none of the others can be added.

    Attributes:
        kept: The units in it.
        left_out: Each unit that was left out, with the set that was tried with it and is not good; or, where a unit
            that it needs is left out, that unit.
    """

    kept: Units
    left_out: Mapping[str, Units | str]


def next_growth(
    order: Sequence[str], needs: Mapping[str, Units], states: Mapping[Units, State]
) -> NextSet | LargestSet:
    """Choose the set of units to try next, or the largest good set when nothing is left to try.

    Units are added in their order, by halving, until one turns the set to anything but good: that one is left out, with
    all that needs it, and the rest is tried at once. At the end each that was left out is tried beside all that was
    kept, unless that is known. Of sets that exclude each other that one is found whose units come first in the order.
    With one culprit among n units these are at most 2·⌈log2 n⌉ + 2 sets, none and all of them included.

    Args:
        order: Units, each after those it needs.
        needs: The units that must move with one, and those that must move with them.
        states: The sets tried, each closed under needs; none of the units, which is good, among them.

    Raises:
        ValueError: None of the units is not good.
    """
    if states.get(NONE) is not State.GOOD:
        raise ValueError("without any of the units it must have been good")
    good, out = NONE, dict[str, Units]()
    while True:
        rest = [unit for unit in order if unit not in good | out.keys() and not needs.get(unit, NONE) & out.keys()]
        if rest:
            chain = list(accumulate(rest, lambda so_far, unit: so_far | {unit}, initial=good))
            step = _extend([states.get(one) for one in chain])
            if step.untried is not None:
                return NextSet(chain[step.untried])
            good = chain[step.last_good]
            if step.last_good < len(rest):
                out[rest[step.last_good]] = chain[step.last_good + 1]
            continue
        proofs = {unit: good | {unit} for unit in out}
        untried = next((one for one in proofs.values() if one not in states), None)
        if untried is not None:
            return NextSet(untried)
        cured = next((unit for unit, one in proofs.items() if states[one] is State.GOOD), None)
        if cured is None:
            because = {unit: next(iter(needs[unit] & out.keys())) for unit in order if unit not in good | out.keys()}
            return LargestSet(good, {**proofs, **because})
        good = proofs[cured]
        del out[cured]


@dataclass(frozen=True)
class _Extension:
    """How far along a chain of growing sets it is good: up to ``last_good``, once nothing is ``untried``."""

    last_good: int
    untried: int | None = None


def _extend(states: Sequence[State | None]) -> _Extension:
    """Find the last good set of a chain whose first is good; the last of all is tried first."""
    if states[-1] is None:
        return _Extension(0, len(states) - 1)
    good = max(index for index, state in enumerate(states) if state is State.GOOD)
    if good == len(states) - 1:
        return _Extension(good)
    bad = next(index for index in range(good + 1, len(states)) if states[index] is not None)
    between = [State.GOOD, *[None] * (bad - good - 1), State.BAD]
    step = search.next_candidate(between)
    return _Extension(good, good + step) if isinstance(step, int) else _Extension(good)
