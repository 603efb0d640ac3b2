"""Which names and calls of trainers bind in a package below them: the last releases of both, each with each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.commands.moved.binding import find_diagnostics
from pytest_rlregress.commands.moved.checker import Checker, Diagnostic, open_checker
from pytest_rlregress.commands.moved.engines import ENGINES
from pytest_rlregress.commands.moved.index import Index, NoSuchRelease, NotRead
from pytest_rlregress.commands.moved.judging import Cell, judge_trainer
from pytest_rlregress.commands.moved.reading import Reader
from pytest_rlregress.commands.moved.wheels import PYTHON, TRAINER, Release


@dataclass(frozen=True)
class Matrix:
    """The releases of a trainer with those of a package.

    Attributes:
        trainer: Its name.
        package: Of the package below it.
        trainers: Releases, the oldest first.
        releases: Of the package, the oldest first.
        cells: By both releases.
        required: What each release of the trainer requires of the package; "" for anything.
    """

    trainer: str
    package: str
    trainers: tuple[str, ...]
    releases: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    required: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Found:
    """What the checker said: by release of the trainer, then of the package; or why it said nothing."""

    diagnostics: dict[tuple[str, str], list[Diagnostic]] = field(default_factory=dict)
    not_read: dict[tuple[str, str], str] = field(default_factory=dict)


def list_last(index: Index, package: str, last: int = 0) -> list[str]:
    """List the last final releases of a package that aren't yanked, the oldest first; all of them without a number.

    Raises:
        NoSuchRelease: No index has the package, or it has no final release.
        NotRead: An index could not be asked.
    """
    known = index.list_releases(package)
    final = [one for one in known if not Version(one).is_prerelease and not index.find_wheel(package, one).yanked]
    if not final:
        raise NoSuchRelease(f"{package} has no final release, only {known[-1]}")
    return final[-last:]


def read_matrices(
    trainers: Sequence[str], package: str, last: int, reader: Reader, tell: Callable[[str], None]
) -> list[Matrix]:
    """Check the last releases of trainers with the last ones of a package.

    Args:
        trainers: Names.
        package: One of ``ENGINES``.
        last: How many releases of each.
        reader: Reads releases: their wheels, and not what is installed, so that a page is the same everywhere.
        tell: Called with a line when the next release of the package begins.

    Raises:
        NoSuchRelease: A package doesn't exist.
        NotRead: A list of releases could not be read, or the type checker isn't installed.
    """
    index = reader.releases.index
    wanted = {name: list_last(index, name, last) for name in trainers}
    releases = list_last(index, package, last)
    read: dict[tuple[str, str], Release] = {}
    failed: dict[tuple[str, str], str] = {}
    for name, versions in wanted.items():
        for version in versions:
            try:
                read[name, version] = reader.releases.read(name, version, TRAINER)
            except (NotRead, NoSuchRelease) as error:
                failed[name, version] = str(error)
    baselines = {key: find_baseline(release, package, index) for key, release in read.items()}
    found = {name: _Found() for name in trainers}
    others = sorted({one for one in baselines.values() if one and one not in releases}, key=Version)
    with open_checker() as checker:
        for at, version in enumerate([*others, *releases], 1):
            tell(f"{package} {version} ({at} of {len(others) + len(releases)})")
            asking = [key for key in read if version in releases or baselines[key] == version]
            _check_release(checker, (package, version), {key: read[key] for key in asking}, found, reader)
    made = []
    for name in trainers:
        cells: dict[tuple[str, str], Cell] = {}
        required: dict[str, str] = {}
        for version in wanted[name]:
            key = (name, version)
            tell(f"judging {name} {version}")
            if key in failed:
                cells |= {(version, one): Cell(False, not_read=failed[key]) for one in releases}
            else:
                required[version] = str(read_requirement(read[key], package))
                cells |= _fill_row(read[key], package, releases, baselines[key], found[name])
        made.append(Matrix(name, package, tuple(wanted[name]), tuple(releases), cells, required))
    return made


def _fill_row(
    trainer: Release, package: str, releases: Sequence[str], baseline: str, found: _Found
) -> dict[tuple[str, str], Cell]:
    of = trainer.version
    read = {one: said for (version, one), said in found.diagnostics.items() if version == of}
    judged = judge_trainer(trainer, package, read, baseline)
    requirement = read_requirement(trainer, package)
    cells = {}
    for version in releases:
        allowed = requirement.contains(version, prereleases=True)
        reason = "" if version in judged else found.not_read.get((of, version), "it wasn't checked")
        cells[of, version] = Cell(allowed, tuple(judged.get(version, ())), reason)
    return cells


def _check_release(
    checker: Checker,
    below: tuple[str, str],
    trainers: Mapping[tuple[str, str], Release],
    found: Mapping[str, _Found],
    reader: Reader,
) -> None:
    package, version = below
    try:
        release = reader.releases.read(package, version, PYTHON)
    except (NotRead, NoSuchRelease) as error:
        for name, of in trainers:
            found[name].not_read[of, version] = str(error)
        return
    for (name, of), trainer in trainers.items():
        try:
            said = find_diagnostics(checker, trainer, release, ENGINES[package], reader.facts)
            found[name].diagnostics[of, version] = said
        except NotRead as error:
            found[name].not_read[of, version] = str(error)
    checker.forget(release)


def read_requirement(trainer: Release, package: str) -> SpecifierSet:
    """Read what a trainer requires of a package, with and without its extra of that name."""
    required = SpecifierSet()
    for one in trainer.requirements:
        own = one.marker is None or re.search(rf"extra == ['\"]{package}['\"]", str(one.marker))
        if canonicalize_name(one.name) == package and own:
            required &= one.specifier
    return required


def find_baseline(trainer: Release, package: str, index: Index) -> str:
    """Find a release of a package that a trainer was surely made with: the newest that its requirements allow.

    Where they allow all newer ones, it is the oldest that they allow. What doesn't bind there is dead, or reached by
    what the checker can't see.

    Returns:
        A version, or "" where any release is allowed, or none.
    """
    known = list_last(index, package)
    required = read_requirement(trainer, package)
    allowed = [one for one in known if required.contains(one, prereleases=True)]
    if len(allowed) in (0, len(known)):
        return ""
    return allowed[-1] if allowed[-1] != known[-1] else allowed[0]
