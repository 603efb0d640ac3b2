"""The packages that changed between two locks, and which of them can only be moved together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pytest_rlregress.stack.locks import Lock, PackageChange, differences
from pytest_rlregress.stack.requirements import Requirements, find_reachable, is_met
from pytest_rlregress.trials.trial import Candidate
from pytest_rlregress.util.text import join_some


@dataclass(frozen=True)
class Upgrades:
    """The packages that changed between two locks."""

    before: Lock
    after: Lock
    labels: tuple[str, str]  # both in words: ``the good lock``

    @cached_property
    def by_name(self) -> Mapping[str, PackageChange]:
        """Every package that differs."""
        return {change.name: change for change in differences(self.before, self.after)}

    def apply(self, names: Iterable[str]) -> Lock:
        """Return the lock of before with these packages as in the other one."""
        return self.before.having({name: self.after.lines.get(name) for name in names})

    def candidate(self, names: Iterable[str]) -> Candidate:
        """Return that lock, to be tried."""
        chosen, changed = sorted(names), len(self.by_name)
        lock = self.apply(chosen)
        label = f"{len(chosen)} of {changed} upgrades ({lock.digest[:6]}): {join_some(chosen)}"
        label = {0: self.labels[0], changed: self.labels[1]}.get(len(chosen), label)
        return Candidate(label, lambda: lock, self.before, frozenset(chosen))

    def group(self, requires: tuple[Requirements, Requirements]) -> UpgradeUnits:
        """Group them into units, by what the packages of either lock require of each other."""
        locks = self.before, self.after
        versions = ({name: lock.version(name) or "" for name in lock.lines} for lock in locks)
        return group_changes(self.by_name.values(), *zip(versions, requires, strict=True))


class UpgradeUnits(NamedTuple):
    """Changed packages in the smallest units that can be moved.

    Attributes:
        order: The units, each after those it needs.
        needs: The other units that must move with one, directly or not.
        members: The packages of a unit, by name.
    """

    order: tuple[str, ...]
    needs: dict[str, frozenset[str]]
    members: dict[str, tuple[str, ...]]

    def names(self, units: Iterable[str]) -> list[str]:
        """Return the packages of some units and of those that they need."""
        closed = {need for unit in units for need in (unit, *self.needs.get(unit, ()))}
        return sorted(name for unit in closed for name in self.members[unit])


def group_changes(
    changes: Iterable[PackageChange],
    old: tuple[Mapping[str, str], Requirements],
    new: tuple[Mapping[str, str], Requirements],
) -> UpgradeUnits:
    """Group changed packages that cannot be moved alone.

    A package needs another one to move with it where its new version requires what only the other's new version meets,
    or where the other's old version requires what its new version breaks. A package that is not there meets nothing.
    Requirements that their own set does not meet do not count: the user has chosen to live with those.

    Args:
        changes: The packages that differ between the ends.
        old: Versions by normalised name, and requirements, of the set before.
        new: Those of the set after.
    """
    needs: dict[str, set[str]] = {change.name: set() for change in changes}
    for name in needs:
        for requirement in _find_met(name, new, needs):
            if not is_met(requirement, old[0]):
                needs[name].add(canonicalize_name(requirement.name))
        for requirement in _find_met(name, old, needs):
            if not is_met(requirement, new[0]):
                needs[canonicalize_name(requirement.name)].add(name)
    reached = {name: find_reachable(name, needs) for name in needs}
    groups = {name: tuple(sorted(other for other in reached[name] if name in reached[other])) for name in needs}
    unit = {name: " + ".join(group) for name, group in groups.items()}
    # What a unit needs reaches less than the unit itself.
    order = tuple(
        dict.fromkeys(unit[name] for name in sorted(needs, key=lambda name: (len(reached[name]), unit[name])))
    )
    return UpgradeUnits(
        order,
        {unit[name]: frozenset(unit[other] for other in reached[name]) - {unit[name]} for name in needs},
        {unit[name]: groups[name] for name in needs},
    )


def _find_met(name: str, end: tuple[Mapping[str, str], Requirements], among: Collection[str]) -> list[Requirement]:
    """Find the requirements of a package on some others that its own set meets."""
    versions, requires = end
    required = requires.get(name, ()) if name in versions else ()
    others = (one for one in required if canonicalize_name(one.name) in among and canonicalize_name(one.name) != name)
    return [one for one in others if is_met(one, versions)]
