"""List the released versions of a package that the configured indexes have, and select those between two ends."""

from __future__ import annotations

import platform
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from packaging import tags
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from pytest_rlregress.environments import index_pages
from pytest_rlregress.environments.index_pages import IndexFile
from pytest_rlregress.environments.index_settings import IndexProblem, IndexSettings


@dataclass(frozen=True)
class Release:
    """A released version.

    Attributes:
        version: In its normal form.
        date: The day its first file was uploaded, as ``2025-01-31``, or None where no index says.
        yanked: Why it was taken back, or None.
        untestable: Why it cannot be installed here: no wheel for this Python and platform, or another Python needed.
        prerelease: Whether it is an alpha, a beta, a release candidate or of a nightly build.
    """

    version: str
    date: str | None = None
    yanked: str | None = None
    untestable: str | None = None
    prerelease: bool = False


def list_releases(package: str, settings: IndexSettings, cache: Path, offline: bool) -> list[Release]:
    """List all released versions of a package, ascending.

    Args:
        package: Its name.
        settings: The indexes and folders, all of which count.
        cache: Folder in which the answers of http(s) indexes are kept, one file for each index and package.
        offline: Whether to read those instead of asking; an index of which none is kept has nothing then.

    Raises:
        IndexProblem: No index has the package, or one cannot be reached.
    """
    name = canonicalize_name(package)
    answers = index_pages.fetch_pages(name, settings, cache, offline)
    files: defaultdict[Version, list[IndexFile]] = defaultdict(list)
    for file in (file for answer in answers for file in answer.files):
        files[Version(file.version)].append(file)
    if not files:
        asked = ", ".join(f"{answer.place} ({answer.status})" for answer in answers) or "none is configured"
        raise IndexProblem(
            f"{package}: not on any index. Asked: {asked}. Check the name, or the settings of uv or pip."
        )
    return [_make_release(version, files[version]) for version in sorted(files)]


def select_candidates(releases: Sequence[Release], good: str, bad: str, pre: bool) -> list[Release]:
    """Select the candidates, from the good end to the bad end, which may be the older one; both are part of it.

    Left out are yanked releases, and unless ``pre`` pre-releases, but for the ends. Of builds that differ only in
    their local label (``+cpu``) one is taken, that with the label of an end if there is one.

    Raises:
        IndexProblem: An end is not among the releases or cannot be installed here, or both are the same.
    """
    first, last = find_release(releases, "the good end", good), find_release(releases, "the bad end", bad)
    if first == last:
        raise IndexProblem(f"the good end and the bad end are the same release, {first.version}")
    labels = [label for end in (last, first) if (label := Version(end.version).local)]

    def preference(release: Release) -> tuple[object, ...]:
        version = Version(release.version)
        return (*(version.local == label for label in labels), version.local is None, version)

    builds: dict[str, list[Release]] = {}
    for release in _slice(releases, first, last):
        if release in (first, last) or (release.yanked is None and (pre or not release.prerelease)):
            builds.setdefault(Version(release.version).public, []).append(release)
    candidates = []
    for same in builds.values():
        ends = [release for release in same if release in (first, last)]
        candidates += ends or [max(same, key=preference)]
    return candidates if candidates[0] == first else candidates[::-1]


def find_yanked(releases: Sequence[Release], good: str, bad: str) -> list[Release]:
    """Find the releases between the ends that ``select_candidates`` leaves out because they were taken back.

    Raises:
        IndexProblem: As ``select_candidates``.
    """
    ends = find_release(releases, "the good end", good), find_release(releases, "the bad end", bad)
    return [release for release in _slice(releases, *ends) if release.yanked is not None and release not in ends]


def _slice(releases: Sequence[Release], one: Release, other: Release) -> Sequence[Release]:
    low, high = sorted((releases.index(one), releases.index(other)))
    return releases[low : high + 1]


def find_newest(releases: Sequence[Release], wanted: SpecifierSet, pre: bool) -> Release:
    """Find the newest release that can be installed here, is not yanked and is of the wanted versions.

    Raises:
        IndexProblem: There is none.
    """
    live = [one for one in releases if one.yanked is None and one.untestable is None and (pre or not one.prerelease)]
    found = [one for one in live if wanted.contains(one.version, prereleases=True)]
    if not found:
        newest = f"newest that can be installed here: {live[-1].version}" if live else "none can be installed here"
        raise IndexProblem(f"no release is {wanted or 'there'}; {newest}.")
    return found[-1]


def find_release(releases: Sequence[Release], what: str, text: str) -> Release:
    """Find the release of a version: exactly, or without the label that its only build has.

    Raises:
        IndexProblem: It is not among the releases or cannot be installed here; ``what`` says what the version is.
    """
    try:
        wanted = Version(text)
    except InvalidVersion:
        raise IndexProblem(f"{what} is no version: {text!r}") from None
    versions = [Version(release.version) for release in releases]
    if wanted in versions:
        found = releases[versions.index(wanted)]
    else:
        builds = [version for version in versions if not wanted.local and version.public == str(wanted)]
        if len(builds) > 1:
            raise IndexProblem(f"{what} {text} has several builds, say which: {', '.join(map(str, builds))}")
        if not builds:
            below = [str(version) for version in versions if version < wanted][-1:]
            above = [str(version) for version in versions if version > wanted][:1]
            closest = " and ".join(below + above)
            raise IndexProblem(f"{what} {text} is not on the index. Closest: {closest}; newest: {versions[-1]}.")
        found = releases[versions.index(builds[0])]
    if found.untestable:
        raise IndexProblem(f"{what} {text} cannot be installed here: {found.untestable}")
    return found


def _make_release(version: Version, files: Sequence[IndexFile]) -> Release:
    live = [file for file in files if file.yanked is None]
    return Release(
        str(version),
        date=min((file.day for file in files if file.day), default=None),
        yanked=None if live else files[0].yanked,
        untestable=_explain_untestable(live or files),
        prerelease=version.is_prerelease,
    )


def _explain_untestable(files: Sequence[IndexFile]) -> str | None:
    """Say why no file of a release can be installed here without building it; None where one can."""
    allowed = [file for file in files if _allows_this_python(file)]
    if not allowed:
        return f"needs Python {files[0].python}"
    wheels = [parse_wheel_filename(file.name)[3] for file in allowed if file.name.endswith(".whl")]
    if any(wheel & _supported_tags() for wheel in wheels):
        return None
    platforms = {tag.platform for tag in _supported_tags()}
    found = {tag for wheel in wheels for tag in wheel}
    others = {tag.interpreter for tag in found if tag.platform in platforms} or {tag.platform for tag in found}
    listed = sorted(others, key=lambda name: (len(name), name)) or ["an sdist"]
    only = ", ".join(["…"] * (len(listed) > 4) + listed[-4:])
    python = f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}"
    return f"no wheel for {python} on {next(tags.sys_tags()).platform} (only {only})"


@once
def _supported_tags() -> frozenset[tags.Tag]:
    return frozenset(tags.sys_tags())


def _allows_this_python(file: IndexFile) -> bool:
    try:
        return SpecifierSet(file.python or "").contains(".".join(map(str, sys.version_info[:3])), prereleases=True)
    except InvalidSpecifier:  # as pip has it: what cannot be read forbids nothing
        return True
