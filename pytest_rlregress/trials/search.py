"""Choose what to try next, from what is known. Pure: the caller asks again after every result, and so resumes."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

Units = frozenset[str]
NONE: Units = frozenset()


class State(enum.StrEnum):
    """The result of a candidate for one test."""

    GOOD = "good"
    BAD = "bad"  # the failure of the bad end
    UNKNOWN = "unknown"


class NotMonotone(ValueError):
    """A good candidate comes after a bad one, so that there is no first bad one.

    Attributes:
        good: Index of the good one.
        bad: Index of the bad one before it.
    """

    def __init__(self, good: int, bad: int) -> None:
        super().__init__(f"candidate {good} is good although candidate {bad} before it is bad")
        self.good, self.bad = good, bad


@dataclass(frozen=True)
class Window:
    """The end of a search: all between the last good and the first bad candidate are unknown."""

    last_good: int
    first_bad: int


@dataclass(frozen=True)
class NextSet:
    """The set of units to try next, closed under needs."""

    subset: Units


@dataclass(frozen=True)
class MinimalSet:
    """A smallest set of units that, with what they need, was seen to be bad."""

    culprits: tuple[Units, ...]  # each is one unit, or the units that unknown trials keep from being told apart
    proven: bool  # whether the rest was seen to be good without any one of them


def next_candidate(states: Sequence[State | None]) -> int | Window:
    """Choose the candidate to try next, or the window when nothing between its ends is left to try.

    Without unknowns it halves the window. Unknowns come in clusters, so that what lies on either side of them is tried
    before what lies between two of them.

    Args:
        states: Candidates from the good end to the bad end, both tried; None for one that was not.

    Raises:
        NotMonotone: A good candidate comes after a bad one.
        ValueError: The first one is not good, or the last one not bad.
    """
    good, bad = find_window(states)
    runs = _find_untried(states, good, bad)
    if not runs:
        return Window(good, bad)
    run = max(runs, key=lambda run: (good + 1 in run or bad - 1 in run, len(run)))
    return run[(len(run) - 1) // 2]


def find_window(states: Sequence[State | None]) -> tuple[int, int]:
    """Find the last good candidate and the first bad one, as far as is known; raises as ``next_candidate`` does."""
    if not states or states[0] is not State.GOOD or states[-1] is not State.BAD:
        raise ValueError("the first candidate must have been good and the last one bad")
    bad = states.index(State.BAD)
    if State.GOOD in states[bad:]:
        raise NotMonotone(states.index(State.GOOD, bad), bad)
    return max(index for index in range(bad) if states[index] is State.GOOD), bad


def _find_untried(states: Sequence[State | None], good: int, bad: int) -> list[range]:
    """Find the stretches of candidates in the window that were not tried."""
    tried = [index for index in range(good, bad + 1) if states[index] is not None]
    return [range(one + 1, other) for one, other in pairwise(tried) if other > one + 1]


def next_set(order: Sequence[str], needs: Mapping[str, Units], states: Mapping[Units, State]) -> NextSet | MinimalSet:
    """Choose the set of units to try next, or the smallest set that flips to bad when nothing is left to try.

    What is found was seen to be bad with what it needs and nothing else, also where upgrades cure what others broke.

    Args:
        order: Units, each after those it needs: what comes first in it is closed under needs.
        needs: The units that must move with one, and those that must move with them.
        states: The closed sets tried: none of the units, which is good, and all of them, which is bad, among them.

    Raises:
        ValueError: None of the units is not good, or all of them are not bad.
    """
    if states.get(NONE) is not State.GOOD or states.get(frozenset(order)) is not State.BAD:
        raise ValueError("without any of the units it must have been good, and with all of them bad")
    step = _narrow(order, needs, states)
    return step if isinstance(step, NextSet) else _minimize(order, needs, states, step)


def _narrow(order: Sequence[str], needs: Mapping[str, Units], states: Mapping[Units, State]) -> NextSet | Units:
    """Narrow to a bad set in which each unit that no other one needs flips it: one after the other, each by halving."""
    fixed, bad = NONE, frozenset(order)
    while states.get(fixed) is not State.BAD:
        if fixed not in states:
            return NextSet(fixed)
        rest = [unit for unit in order if unit in bad - fixed]
        chain = list(dict.fromkeys([NONE, *accumulate(rest, lambda step, unit: step | {unit}, initial=fixed)]))
        found = [states.get(step) for step in chain]
        del found[found.index(State.BAD) + 1 :]  # a good one after it: upgrades cure, but this one was bad
        good, last = find_window(found)
        unknown = [index for index in range(good, last) if found[index] is State.UNKNOWN]
        if unknown:  # between two of them little is to be learned: what is found is made minimal afterwards
            found[unknown[0] : unknown[-1]] = [State.UNKNOWN] * (unknown[-1] - unknown[0])
        step = next_candidate(found)
        if isinstance(step, int):
            return NextSet(chain[step])
        bad = chain[step.first_bad]
        fixed |= _with_needed(bad - chain[step.first_bad - 1], needs)
    return fixed


def _minimize(
    order: Sequence[str], needs: Mapping[str, Units], states: Mapping[Units, State], bad: Units
) -> NextSet | MinimalSet:
    """Drop from a bad set each unit, that no other one in it needs, without which it is bad too."""
    while True:
        needed = frozenset(need for unit in bad for need in needs.get(unit, NONE) - {unit})
        drops = {unit: bad - {unit} for unit in order if unit in bad - needed}
        clear = [unit for unit, rest in drops.items() if states.get(rest) is State.GOOD]
        unclear = frozenset(unit for unit, rest in drops.items() if states.get(rest) is State.UNKNOWN)
        least = _with_needed(clear, needs)
        step = _find_smaller(drops.values(), states)
        if step is None and unclear:  # some may only work beside each other: without all of them
            step = _find_smaller([bad - unclear, least], states)
        if isinstance(step, NextSet):
            return step
        if step is None:
            break
        bad = step
    elements = [frozenset({unit}) for unit in clear]
    if not unclear:
        return MinimalSet(tuple(elements), proven=True)
    good = (rest for rest, state in states.items() if state is State.GOOD and least <= rest <= bad - unclear)
    kept = max(good, key=len, default=None)
    elements.append(bad - (least if kept is None else kept))
    return MinimalSet(
        tuple(sorted(elements, key=lambda element: min(map(order.index, element)))), proven=kept is not None
    )


def _find_smaller(sets: Collection[Units], states: Mapping[Units, State]) -> Units | NextSet | None:
    """Find the first of these sets that is bad, or that has to be tried to know."""
    untried = [one for one in sets if one not in states]
    # A part of a good one is hardly bad. Those come last: trying them again for every smaller set would be waste.
    untried.sort(key=lambda one: any(state is State.GOOD and one <= more for more, state in states.items()))
    bad = (one for one in sets if states.get(one) is State.BAD)
    return next(bad, NextSet(untried[0]) if untried else None)


def _with_needed(units: Iterable[str], needs: Mapping[str, Units]) -> Units:
    """Add to these units what they need."""
    return frozenset().union(*({unit} | needs.get(unit, NONE) for unit in units))


@dataclass(frozen=True)
class LargestSet:
    """A set of units that was seen to be good and to which none of the others can be added."""

    kept: Units
    # Each other unit, with the set that was tried with it and isn't good, or a unit that it needs and that is left out.
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
            if isinstance(step, int):
                return NextSet(chain[step])
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


def _extend(states: Sequence[State | None]) -> int | Window:
    """Choose the next set of a growing chain to try, the last one first, or the window after its last good set."""
    if states[-1] is None:
        return len(states) - 1
    good = max(index for index, state in enumerate(states) if state is State.GOOD)
    bad = next((index for index in range(good + 1, len(states)) if states[index] is not None), good + 1)
    step = next_candidate([State.GOOD, *[None] * (bad - good - 1), State.BAD])
    return good + step if isinstance(step, int) else Window(good, good + 1)
