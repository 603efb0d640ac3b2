"""Find the largest set of upgrades that makes nothing worse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_rlregress.commands.trials.progress import ProgressWindow
from pytest_rlregress.commands.trials.search import NONE, Units
from pytest_rlregress.commands.trials.trial import State
from pytest_rlregress.commands.trials.upgrades import Upgrades
from pytest_rlregress.commands.upgrade.answer import LeftOut, SafeSet
from pytest_rlregress.commands.upgrade.growth import LargestSet, next_growth
from pytest_rlregress.commands.upgrade.plan import list_steps_back
from pytest_rlregress.commands.upgrade.tries import Baseline, Tried
from pytest_rlregress.stack.locks import Lock


@dataclass(frozen=True)
class GrownSet:
    """The largest set of upgrades that makes nothing worse.

    Attributes:
        safe_set: The set.
        lock: This environment with it.
    """

    safe_set: SafeSet
    lock: Lock


def grow(upgrades: Upgrades, asked: Collection[str], baseline: Baseline) -> GrownSet:
    """Try sets of upgrades until the largest one is found that makes nothing worse.

    Args:
        upgrades: What moves, in the smallest units that can be moved.
        asked: The packages that were asked for; all others move only with those that need them.
        baseline: The environment as it is.

    Raises:
        NoSpace: The disk is full.
    """
    order = [unit for unit in upgrades.units.order if not set(asked).isdisjoint(upgrades.units.members[unit])]
    needs = {unit: upgrades.units.needs[unit] & set(order) for unit in order}
    tried: dict[Units, Tried] = {}
    while True:
        states = {NONE: State.GOOD, **{subset: one.state for subset, one in tried.items()}}
        step = next_growth(order, needs, states)
        if isinstance(step, LargestSet):
            return _describe(upgrades, step, tried)
        best = max(len(subset) for subset, state in states.items() if state is State.GOOD)
        left = len(order) - best
        back = list_steps_back(upgrades.locks.by_name[name] for name in upgrades.names(step.subset))
        if back:
            tried[step.subset] = Tried(State.BAD, ", ".join(back))
            continue
        window = ProgressWindow(f"{best} of {len(order)} known to be safe", left, left.bit_length())
        tried[step.subset] = baseline.compare(upgrades.candidate(step.subset), window)


def _describe(upgrades: Upgrades, found: LargestSet, tried: Mapping[Units, Tried]) -> GrownSet:
    changes = upgrades.locks.by_name

    def describe(unit: str) -> tuple[str, ...]:
        return tuple(str(changes[name]) for name in upgrades.units.members[unit])

    def explain(because: Units | str) -> str:
        if isinstance(because, str):
            return f"needs {' and '.join(describe(because))}"
        one = tried[because]
        return one.reason if one.state is State.BAD else f"could not be tested: {one.reason}"

    kept = upgrades.names(found.kept)
    left_out = tuple(LeftOut(describe(unit), explain(because)) for unit, because in sorted(found.left_out.items()))
    return GrownSet(SafeSet(tuple(str(changes[name]) for name in kept), left_out), upgrades.locks.apply(kept))
