"""What packages require of each other, and which of them can therefore not be moved alone."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from pytest_rlregress.stack import distributions
from pytest_rlregress.stack.locks import PackageChange

#: The requirements of each package, by its normalised name, whose markers hold for this Python and platform. Those of
#: an extra count where a package of the same set requires it with that extra.
Requirements = Mapping[str, tuple[Requirement, ...]]


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


def read_requirements(found: Iterable[metadata.Distribution] | None = None) -> Requirements:
    """Read the requirements of the distributions of this environment, or of another one."""
    requirements: dict[str, list[Requirement]] = {}
    for distribution in distributions() if found is None else found:
        name = distribution.metadata["Name"]
        if name and canonicalize_name(name) not in requirements:  # the first on the path is what is imported
            requirements[canonicalize_name(name)] = _parse(distribution.requires or ())
    extras: dict[str, set[str]] = {name: set() for name in requirements}
    while True:
        requires = {name: _applicable(requirements[name], extras[name]) for name in requirements}
        required = [
            (_name(requirement), extra)
            for some in requires.values()
            for requirement in some
            for extra in requirement.extras
        ]
        more = [(name, extra) for name, extra in required if name in extras and extra not in extras[name]]
        if not more:
            return requires
        for name, extra in more:
            extras[name].add(extra)


def find_unmet(versions: Mapping[str, str], requires: Requirements) -> dict[str, list[Requirement]]:
    """Find by package the requirements that its own set does not meet: missing, or in another version.

    Args:
        versions: The set, by normalised name.
        requires: What its packages require.
    """
    unmet = {
        name: [requirement for requirement in requires.get(name, ()) if not _is_met(requirement, versions)]
        for name in versions
    }
    return {name: some for name, some in unmet.items() if some}


def find_dependencies(roots: Iterable[str], requires: Requirements) -> set[str]:
    """Find these packages and all that they require, directly or not, of those that are there."""
    edges = {name: {_name(requirement) for requirement in some} & requires.keys() for name, some in requires.items()}
    return {name for root in map(canonicalize_name, roots) if root in edges for name in _reachable(root, edges)}


def group_changes(
    changes: Sequence[PackageChange],
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
        for requirement in _met_among(name, new, needs):
            if not _is_met(requirement, old[0]):
                needs[name].add(_name(requirement))
        for requirement in _met_among(name, old, needs):
            if not _is_met(requirement, new[0]):
                needs[_name(requirement)].add(name)
    reached = {name: _reachable(name, needs) for name in needs}
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


def _parse(lines: Iterable[str]) -> list[Requirement]:
    found = []
    for line in lines:
        try:
            found.append(Requirement(line))
        except InvalidRequirement:  # of an old package: installers warn and go on
            continue
    return found


def _applicable(requirements: Iterable[Requirement], extras: Collection[str]) -> tuple[Requirement, ...]:
    """Return the requirements whose markers hold, with one of the extras or with none, without the markers."""
    found = []
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            held = copy.copy(requirement)
            held.marker = None
            found.append(held)
    return tuple(found)


def _met_among(name: str, end: tuple[Mapping[str, str], Requirements], among: Collection[str]) -> list[Requirement]:
    """Return the requirements of a package on some others that its own set meets."""
    versions, requires = end
    required = requires.get(name, ()) if name in versions else ()
    return [
        requirement
        for requirement in required
        if _name(requirement) in among and _name(requirement) != name and _is_met(requirement, versions)
    ]


def _is_met(requirement: Requirement, versions: Mapping[str, str]) -> bool:
    """Return whether a set has what is required. What comes from a folder or a URL may be any version."""
    version = versions.get(_name(requirement))
    try:
        return version is not None and requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


def _reachable(start: str, edges: Mapping[str, Collection[str]]) -> set[str]:
    """Return the start and all that edges lead to."""
    found, todo = {start}, [start]
    while todo:
        new = set(edges[todo.pop()]) - found
        found |= new
        todo += new
    return found
