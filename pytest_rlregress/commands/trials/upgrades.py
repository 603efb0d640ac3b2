"""What changed between two locks, in the smallest units that can be moved, and a candidate for any of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from pytest_rlregress.commands.environments import requirements
from pytest_rlregress.commands.environments.requirements import Requirements, UpgradeUnits
from pytest_rlregress.commands.trials.progress import join_some
from pytest_rlregress.commands.trials.runner import Candidate
from pytest_rlregress.commands.trials.search import Units
from pytest_rlregress.stack.locks import Lock, PackageChange, differences


@dataclass(frozen=True)
class LockChanges:
    """What changed between two locks.

    Attributes:
        before: The one lock.
        after: The other one.
        labels: Both in words: ``the good lock``.
    """

    before: Lock
    after: Lock
    labels: tuple[str, str]

    @cached_property
    def by_name(self) -> Mapping[str, PackageChange]:
        """Every package that differs."""
        return {change.name: change for change in differences(self.before, self.after)}

    def apply(self, names: Iterable[str]) -> Lock:
        """The lock of before with these packages as in the other one."""
        return self.before.having({name: self.after.lines.get(name) for name in names})

    def candidate(self, names: Iterable[str]) -> Candidate:
        """The lock of before with these packages as in the other one, to be tried."""
        chosen, changed = sorted(names), len(self.by_name)
        lock = self.apply(chosen)
        label = f"{len(chosen)} of {changed} upgrades ({lock.digest[:6]}): {join_some(chosen)}"
        label = {0: self.labels[0], changed: self.labels[1]}.get(len(chosen), label)
        return Candidate(label, lambda: lock, self.before, frozenset(chosen))


@dataclass(frozen=True)
class Upgrades:
    """What changed between two locks, in units: packages that can only be moved together.

    Attributes:
        locks: The changes.
        units: The units, each after those it needs, and what they need.
    """

    locks: LockChanges
    units: UpgradeUnits

    def names(self, units: Iterable[str]) -> list[str]:
        """The packages of some units and of those that they need."""
        closed = {need for unit in units for need in (unit, *self.units.needs.get(unit, ()))}
        return sorted(name for unit in closed for name in self.units.members[unit])

    def candidate(self, units: Units) -> Candidate:
        """The lock of before with these units as in the other one, to be tried."""
        return self.locks.candidate(self.names(units))


def group_upgrades(locks: LockChanges, requires: tuple[Requirements, Requirements]) -> Upgrades:
    """Group what changed into units.

    Args:
        locks: The changes.
        requires: What the packages of either lock require of each other.
    """
    ends = ((_versions(lock), some) for lock, some in zip((locks.before, locks.after), requires, strict=True))
    return Upgrades(locks, requirements.group_changes([*locks.by_name.values()], *ends))


def _versions(lock: Lock) -> dict[str, str]:
    return {name: lock.version(name) or "" for name in lock.lines}
