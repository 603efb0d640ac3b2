"""What packages require of each other."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from pytest_rlregress.stack.installed import distributions, read_head

#: The requirements of each package, by its normalised name, whose markers hold for this Python and platform. Those of
#: an extra count where a package of the same set requires it with that extra.
Requirements = Mapping[str, tuple[Requirement, ...]]


def read_requirements(found: Iterable[metadata.Distribution] | None = None) -> Requirements:
    """Read the requirements of the distributions of this environment, or of another one."""
    requirements: dict[str, list[Requirement]] = {}
    for distribution in distributions() if found is None else found:
        name, _ = read_head(distribution)
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
        name: [requirement for requirement in requires.get(name, ()) if not is_met(requirement, versions)]
        for name in versions
    }
    return {name: some for name, some in unmet.items() if some}


def find_dependencies(roots: Iterable[str], requires: Requirements) -> set[str]:
    """Find these packages and all that they require, directly or not, of those that are there."""
    edges = {name: {_name(requirement) for requirement in some} & requires.keys() for name, some in requires.items()}
    return {name for root in map(canonicalize_name, roots) if root in edges for name in find_reachable(root, edges)}


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


def is_met(requirement: Requirement, versions: Mapping[str, str]) -> bool:
    """Return whether a set has what is required. What comes from a folder or a URL may be any version."""
    version = versions.get(_name(requirement))
    try:
        return version is not None and requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


def find_reachable(start: str, edges: Mapping[str, Collection[str]]) -> set[str]:
    """Return the start and all that edges lead to."""
    found, todo = {start}, [start]
    while todo:
        new = set(edges[todo.pop()]) - found
        found |= new
        todo += new
    return found
