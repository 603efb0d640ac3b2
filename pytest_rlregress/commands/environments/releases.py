"""List the released versions of a package between two ends, by asking uv for the newest below each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from pytest_rlregress.commands.environments.index_settings import IndexProblem
from pytest_rlregress.commands.environments.uv import Unbuildable

#: Finds the newest release that meets a requirement, ``find("torch<2.13", pre=False)``; raises Unbuildable.
Find = Callable[..., "Release"]


@dataclass(frozen=True)
class Release:
    """A released version that can be installed here.

    Attributes:
        version: In its normal form.
        date: The day its first file was uploaded, as ``2025-01-31``, or None where no index says.
    """

    version: str
    date: str | None = None


def list_candidates(find: Find, package: str, good: str, bad: str, pre: bool) -> list[Release]:
    """List the candidates, from the good end to the bad end, which may be the older one; both are part of it.

    But for the ends yanked releases are left out, those that cannot be installed here, and pre-releases unless ``pre``.
    A release is one candidate, however many builds with a label (``+cpu``) it has.

    Raises:
        IndexProblem: An end is not on an index or cannot be installed here, or both are the same.
    """
    ends = [find_release(find, package, f"the {word} end", text) for word, text in (("good", good), ("bad", bad))]
    older, newer = sorted(ends, key=lambda one: Version(one.version))
    if older.version == newer.version:
        raise IndexProblem(f"the good end and the bad end are the same release, {older.version}")
    found = [newer]
    first, last = _public(older), _public(newer)
    with suppress(Unbuildable):
        while last != first:
            one = find(f"{package}>={first},<={last},!={last}", pre=pre)
            last = _public(one)
            if last != first:
                found.append(Release(last, one.date))
    found.append(older)
    return found if ends[0] == newer else found[::-1]


def list_left_out(find: Find, package: str, known: Sequence[str], pre: bool) -> list[tuple[str, str]]:
    """List the releases between two versions that cannot be installed here or are yanked, each with the reason.

    Args:
        find: Asks uv.
        package: Its name.
        known: The two versions, and those between them that were candidates.
        pre: Whether pre-releases count.
    """
    low, *between, high = sorted(map(Version, known))
    conditions = [f">{low.public}", f"<{high.public}", *(f"!={one.public}" for one in between)]
    try:
        find(f"{package}{','.join(conditions)}", pre=pre)
    except Unbuildable as error:
        named = {Version(text) for text in re.findall(rf"{re.escape(package)}==([\w.!+]*\w)", error.text)}
        return [
            (str(one), _explain_left_out(find, package, one))
            for one in sorted(named - set(between))
            if low < one < high and (pre or not one.is_prerelease)
        ]
    return []


def _explain_left_out(find: Find, package: str, version: Version) -> str:
    try:
        find(f"{package}=={version}", pre=True)
    except Unbuildable as error:
        return str(error)
    return "yanked"


def find_newest(find: Find, package: str, wanted: str, pre: bool) -> Release:
    """Find the newest release of the wanted versions that can be installed here.

    Raises:
        IndexProblem: There is none.
    """
    try:
        return find(f"{package}{wanted}", pre=pre)
    except Unbuildable as error:
        raise _explain(find, package, f"no release is {wanted or 'there'}", error) from None


def find_release(find: Find, package: str, what: str, text: str) -> Release:
    """Find the release of a version.

    Raises:
        IndexProblem: It is not on an index or cannot be installed here; ``what`` says what the version is.
    """
    try:
        wanted = Version(text)
    except InvalidVersion:
        raise IndexProblem(f"{what} is no version: {text!r}") from None
    try:
        found = find(f"{package}=={wanted}", pre=True)
    except Unbuildable as error:
        above, below = f">{wanted.public}", f"<{wanted.public}"
        raise _explain(find, package, f"{what} {text} cannot be installed here", error, below, above) from None
    return Release(str(wanted) if wanted.local else _public(found), found.date)


def _explain(find: Find, package: str, what: str, error: Unbuildable, *beside: str) -> IndexProblem:
    """Say that a release cannot be had, why, and which are the closest."""
    if "No solution found" not in error.text:
        return IndexProblem(f"{error}. Check the network and the settings, or take --no-network, which asks uv's cache")
    closest = []
    for condition in beside:
        with suppress(Unbuildable):
            closest.append(find(f"{package}{condition}", lowest=condition.startswith(">")).version)
    with suppress(Unbuildable):
        newest = f"newest that can be installed here: {find(package).version}"
        near = f"Closest: {' and '.join(closest)}; {newest}" if closest else newest
        return IndexProblem(f"{what}: {error}. {near}")
    return IndexProblem(f"{error}. Check the name, or the settings of uv or pip")


def _public(release: Release) -> str:
    return Version(release.version).public
