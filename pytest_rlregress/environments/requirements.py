"""What packages ask of each other, and which of them can therefore not be moved alone. Pure but for their metadata."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from pytest_rlregress.stack.locks import PackageChange

#: By normalised name what a package asks for, where the markers hold for this Python and platform. What it asks for
#: under an extra counts where a package of the same set asks for it with that extra.
Wishes = Mapping[str, tuple[Requirement, ...]]


class Together(NamedTuple):
    """Changed packages in the smallest units that can be moved.

    Attributes:
        order: The units, each after those it needs.
        needs: The other units that must move with one, directly or not.
        members: The packages of a unit, by name.
    """

    order: tuple[str, ...]
    needs: dict[str, frozenset[str]]
    members: dict[str, tuple[str, ...]]


def of(distributions: Iterable[metadata.Distribution] | None = None) -> Wishes:
    """What the distributions of this process' environment, or of another one, ask for."""
    requirements: dict[str, list[Requirement]] = {}
    for distribution in metadata.distributions() if distributions is None else distributions:
        name = distribution.metadata["Name"]
        if name and canonicalize_name(name) not in requirements:  # the first on the path is what is imported
            requirements[canonicalize_name(name)] = _parsed(distribution.requires or ())
    extras: dict[str, set[str]] = {name: set() for name in requirements}
    while True:
        wishes = {name: _holding(requirements[name], extras[name]) for name in requirements}
        asked = [(_name(wish), extra) for some in wishes.values() for wish in some for extra in wish.extras]
        more = [(name, extra) for name, extra in asked if name in extras and extra not in extras[name]]
        if not more:
            return wishes
        for name, extra in more:
            extras[name].add(extra)


def broken(versions: Mapping[str, str], wishes: Wishes) -> dict[str, list[Requirement]]:
    """By package the wishes that its own set does not meet: what it asks for is missing or has another version.

    Args:
        versions: The set, by normalised name.
        wishes: What its packages ask for.
    """
    unmet = {name: [wish for wish in wishes.get(name, ()) if not _met(wish, versions)] for name in versions}
    return {name: some for name, some in unmet.items() if some}


def closure(roots: Iterable[str], wishes: Wishes) -> set[str]:
    """The packages, of those that are there, that these need: themselves, and what is asked for directly or not."""
    asks = {name: {_name(wish) for wish in some} & wishes.keys() for name, some in wishes.items()}
    return {name for root in map(canonicalize_name, roots) if root in asks for name in _reached(root, asks)}


def together(
    changes: Sequence[PackageChange], old: tuple[Mapping[str, str], Wishes], new: tuple[Mapping[str, str], Wishes]
) -> Together:
    """Which of the changed packages cannot be moved alone.

    A package needs another one to move with it where its new version asks for what only the other's new version meets,
    or where the other's old version asks for what its new version breaks. A package that is not there meets nothing.
    Wishes that their own set does not meet do not count: the user has chosen to live with those.

    Args:
        changes: The packages that differ between the ends.
        old: Versions by normalised name, and wishes, of the set before.
        new: Those of the set after.
    """
    needs: dict[str, set[str]] = {change.name: set() for change in changes}
    for name in needs:
        for wish in _kept(name, new, needs):
            if not _met(wish, old[0]):
                needs[name].add(_name(wish))
        for wish in _kept(name, old, needs):
            if not _met(wish, new[0]):
                needs[_name(wish)].add(name)
    reached = {name: _reached(name, needs) for name in needs}
    groups = {name: tuple(sorted(other for other in reached[name] if name in reached[other])) for name in needs}
    unit = {name: " + ".join(group) for name, group in groups.items()}
    # What a unit needs reaches less than the unit itself.
    order = tuple(
        dict.fromkeys(unit[name] for name in sorted(needs, key=lambda name: (len(reached[name]), unit[name])))
    )
    return Together(
        order,
        {unit[name]: frozenset(unit[other] for other in reached[name]) - {unit[name]} for name in needs},
        {unit[name]: groups[name] for name in needs},
    )


def _parsed(lines: Iterable[str]) -> list[Requirement]:
    found = []
    for line in lines:
        try:
            found.append(Requirement(line))
        except InvalidRequirement:  # of an old package: installers warn and go on
            continue
    return found


def _holding(requirements: Iterable[Requirement], extras: Collection[str]) -> tuple[Requirement, ...]:
    """Those whose markers hold, with one of the extras or with none, without the markers."""
    found = []
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            held = copy.copy(requirement)
            held.marker = None
            found.append(held)
    return tuple(found)


def _kept(name: str, end: tuple[Mapping[str, str], Wishes], among: Collection[str]) -> list[Requirement]:
    """The wishes of a package to some others that are met in its own set."""
    versions, wishes = end
    asked = wishes.get(name, ()) if name in versions else ()
    return [wish for wish in asked if _name(wish) in among and _name(wish) != name and _met(wish, versions)]


def _met(wish: Requirement, versions: Mapping[str, str]) -> bool:
    """Whether a set has what is asked for. What comes from a folder or a URL may be any version."""
    version = versions.get(_name(wish))
    try:
        return version is not None and wish.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True


def _name(wish: Requirement) -> str:
    return canonicalize_name(wish.name)


def _reached(start: str, edges: Mapping[str, Collection[str]]) -> set[str]:
    """The start and all that edges lead to."""
    found, todo = {start}, [start]
    while todo:
        new = set(edges[todo.pop()]) - found
        found |= new
        todo += new
    return found
