"""Resolve an upgrade against the environment it is called in; say who forbids what cannot be installed here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pytest_rlregress.commands.environments import HARNESS, RequestError, requirements, resolver
from pytest_rlregress.commands.environments.indexes import find_newest, find_release
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.trial import LockChanges
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import Lock, LockError, PackageChange, differences
from pytest_rlregress.util.text import on_one_line

_TRAINERS_AND_ENGINES = {
    name for component in ("verl", "trl", "prime-rl", "vllm") for name in COMPONENTS[component].distributions
}


@dataclass(frozen=True)
class UpgradePlan:
    """An upgrade that can be resolved.

    Attributes:
        locks: This environment, and as it would be.
        requires: What the packages of this environment require of each other.
        asked: The packages that were asked for; all others move along.
        stays: Of those the ones whose newest release cannot be installed here, each in a sentence that says why.
        instead: Where a trainer or an engine goes back: the newest that can be had without that; () is to stay.
    """

    locks: LockChanges
    requires: Requirements
    asked: Collection[str]
    stays: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()


def split_words(words: Sequence[str]) -> tuple[list[Requirement], list[str]]:
    """Split what was named into packages that are installed here and tests.

    Raises:
        RequestError: A package is not installed here, or more is said of it than a version.
    """
    packages: list[Requirement] = []
    tests: list[str] = []
    here = locks.installed()
    for word in words:
        try:
            one = Requirement(word)
        except InvalidRequirement as error:
            if re.match(r"[\w.-]+\s*[=<>!~]=", word):
                raise RequestError(f"{word!r} isn't a package with a version: {on_one_line(str(error))}") from None
            tests.append(word)
            continue
        if canonicalize_name(one.name) not in here.lines:
            if one.specifier or one.extras or one.url:
                raise RequestError(_explain_not_installed(one.name, here))
            tests.append(word)
        elif one.extras or one.url or one.marker:
            raise RequestError(f"{word}: of a package its name and its version can be said: {one.name}==VERSION")
        elif canonicalize_name(one.name) == HARNESS:
            raise RequestError(f"{HARNESS} is what compares, and is the same on both sides: pip install -U {HARNESS}")
        else:
            packages.append(one)
    return packages, tests


def _explain_not_installed(name: str, here: Lock) -> str:
    others = [
        one
        for about in COMPONENTS.values()
        if canonicalize_name(name) in about.distributions
        for one in about.distributions
    ]
    instead = [one for one in others if one in here.lines]
    more = f"; {instead[0]} is, which takes its place" if instead else ""
    return f"{name} is not installed here{more}: an upgrade is of what is there"


def make_plan(context: TrialContext, packages: Sequence[Requirement]) -> UpgradePlan:
    """Resolve the upgrade that was asked for.

    A package that was named without a version stays behind its newest release where that cannot be installed here.

    Raises:
        RequestError: It cannot be resolved, and who forbids it; or the index has no such version, or cannot be asked.
        LockError: The file of requirements cannot be read.
    """
    options, here = context.options, locks.installed()
    requires = requirements.read_requirements()
    wanted = dict(_find_version(context, here, one) for one in packages)
    conditions = _read_conditions(options.requirements) if options.requirements else ()
    newest = frozenset(resolver.list_movable(here, requires) - {HARNESS} if options.all else ())
    free = {canonicalize_name(one.name): one for one in packages if find_exact(one.specifier) is None}
    allowed = _read_allowed(options.may_downgrade, here)
    floors = find_floors(here, wanted.keys() | allowed)
    pins = Pins(wanted, newest - wanted.keys(), conditions, floors, requires)
    stays: tuple[str, ...] = ()
    try:
        after = resolve(context, here, pins)
    except Unbuildable as error:
        if not error.conflict:  # no network, a damaged wheel
            raise RequestError(f"the upgrade could not be resolved: {error}") from None
        looser = replace(
            pins,
            wanted={name: version for name, version in wanted.items() if name not in free},
            newest=newest | free.keys(),
            conditions=(*conditions, *map(str, free.values())),
            floors=find_floors(here, (wanted.keys() - free.keys()) | allowed),
        )
        try:
            if not free:
                raise
            after = resolve(context, here, looser)
        except Unbuildable:
            raise RequestError(explain_conflict(context, here, pins)) from None
        stays = explain_stays(context, here, after, pins, free)
    changes = LockChanges(here, after, ("as it is here", "with all upgrades"))
    instead: tuple[str, ...] = ()
    if list_steps_back(changes.by_name.values()):
        instead = find_instead(context, here, replace(pins, floors=find_floors(here, allowed - _TRAINERS_AND_ENGINES)))
    return UpgradePlan(changes, requires, wanted.keys(), stays, instead)


def list_steps_back(changes: Iterable[PackageChange]) -> tuple[str, ...]:
    """List the trainers and engines that are taken back, each with how far: what takes one back is not called safe."""
    return tuple(
        f"{one.name} goes back from {_parse_version(one.before)} to {_parse_version(one.after)}"
        for one in changes
        if one.name in _TRAINERS_AND_ENGINES and goes_back(one)
    )


def _read_conditions(path: Path) -> tuple[str, ...]:
    """Read a requirements file as conditions: without projects to install, which uv takes for none.

    Raises:
        LockError: It cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path}: cannot be read: {error}") from None
    folder = path.parent.resolve()
    others = (re.sub(r"^\s*(-[rc]|--requirement|--constraint)[ =]+", rf"\1 {folder}/", line) for line in lines)
    return tuple(line for line in others if not re.match(r"\s*(-e|--editable)\b", line))


def find_exact(wanted: SpecifierSet) -> str | None:
    """Return the version that a condition names, if it names exactly one and says nothing else."""
    exact = re.fullmatch(r"={2,3}\s*([^*,]+)", str(wanted))
    return exact[1] if exact else None


def _find_version(context: TrialContext, here: Lock, wanted: Requirement) -> tuple[str, str]:
    """Find which release is wanted: exactly that one, or the newest that is meant."""
    name, options = canonicalize_name(wanted.name), context.options
    if not here.lines[name].startswith(f"{name}=="):
        raise RequestError(f"{name} does not come from an index here, but from {here.lines[name]}: it is left as it is")
    find, exact = context.environments.find_release, find_exact(wanted.specifier)
    try:
        if exact:
            return name, find_release(find, name, "version", exact).version
        return name, find_newest(find, name, str(wanted.specifier), options.pre).version
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None


def _read_allowed(names: Iterable[str], here: Lock) -> frozenset[str]:
    allowed = frozenset(map(canonicalize_name, names))
    unknown = allowed - here.lines.keys()
    if unknown:
        raise RequestError(f"--may-downgrade {', '.join(sorted(unknown))}: not installed here")
    return allowed


@dataclass(frozen=True)
class Pins:
    """All that a resolution has to respect.

    Attributes:
        wanted: Version by name.
        newest: Packages that are moved to the newest version that all else allows.
        conditions: Of the user: lines of a requirements file.
        floors: Packages that may not go back behind their version here.
        requires: What the packages of this environment require of each other.
    """

    wanted: Mapping[str, str]
    newest: frozenset[str]
    conditions: tuple[str, ...]
    floors: frozenset[str]
    requires: Requirements


def find_floors(here: Lock, free: Collection[str]) -> frozenset[str]:
    """Find the packages that may not go back: those from an index that are not free to."""
    indexed = {name for name, line in here.lines.items() if line.startswith(f"{name}==") and "+" not in line}
    return frozenset(indexed - set(free))


def resolve(context: TrialContext, here: Lock, pins: Pins) -> Lock:
    """Resolve an upgrade; a pre-release that nobody allowed or named is taken only where nothing else can be."""
    floors = [f"{name}>={here.version(name)}" for name in sorted(pins.floors)]
    conditions = [*pins.conditions, *floors]

    def resolve_once() -> Lock:
        return context.environments.resolve(here, pins.wanted, pins.requires, newest=pins.newest, conditions=conditions)

    lock = resolve_once()
    while not context.options.pre and (more := _exclude_prereleases(here, lock, pins)):
        conditions += more
        try:
            lock = resolve_once()
        except Unbuildable:
            break
    return lock


def _exclude_prereleases(here: Lock, lock: Lock, pins: Pins) -> list[str]:
    """List the conditions that exclude the pre-releases that a lock moves to, but for the wanted ones."""
    found = []
    for one in differences(here, lock):
        before, after = _parse_version(one.before), _parse_version(one.after)
        if one.name not in pins.wanted and after and after.is_prerelease:
            stays = before and before.is_prerelease
            found.append(f"{one.name}=={before}" if stays else f"{one.name}<{after.base_version}")
    return found


def find_instead(context: TrialContext, here: Lock, pins: Pins) -> tuple[str, ...]:
    """Find the newest of what was asked for that takes no trainer and no engine back; nothing where that is to stay."""
    with suppress(Unbuildable):
        lock = resolve(context, here, replace(pins, wanted={}, newest=pins.newest | pins.wanted.keys()))
        return tuple(map(str, differences(here, lock)))
    return ()


def explain_stays(context: TrialContext, here: Lock, after: Lock, pins: Pins, free: Iterable[str]) -> tuple[str, ...]:
    """Say of each package that stays behind its newest release who forbids that."""
    found = []
    for name in free:
        version = after.version(name) or "0"
        if Version(version) < Version(pins.wanted[name]):
            moved = "goes to" if after.lines[name] != here.lines[name] else "stays at"
            why = _find_forbidding(context, here, pins, name)
            found.append(f"{name} {moved} {version}: {pins.wanted[name]} cannot be installed here{why}")
    return tuple(found)


def explain_conflict(context: TrialContext, here: Lock, pins: Pins) -> str:
    """Say in a sentence which package cannot be installed and why, and in another which package could be downgraded."""
    context.progress.say("the upgrade cannot be resolved; looking for what forbids it")
    named = [(name, _find_forbidding(context, here, pins, name)) for name in pins.wanted]
    found = [f"{name} {pins.wanted[name]} cannot be installed here{why}" for name, why in named if why]
    words = " and ".join(f"{name} {version}" for name, version in pins.wanted.items())
    text = "; ".join(found) or f"{words or 'all of this'} cannot be installed here with all else that is asked for"
    with suppress(Unbuildable):
        lock = resolve(context, here, replace(pins, floors=frozenset()))
        back = [one for one in differences(here, lock) if one.name in pins.floors and goes_back(one)]
        allowed = " ".join(f"--may-downgrade {one.name}" for one in back)
        text += f". It can with {allowed} ({', '.join(map(str, back))})" if back else ""
    return text


def _find_forbidding(context: TrialContext, here: Lock, pins: Pins, name: str) -> str:
    """Say who forbids a release, as ``: numba 0.66 requires numpy<2.5``; "" where no single package does.

    What requires another version of it; else what requires another version of something that the release itself needs,
    and cannot be installed beside it.
    """
    wanted, version = f"{name}=={pins.wanted[name]}", pins.wanted[name]
    versions = {other: here.version(other) or "" for other in here.lines}
    others = {other: some for other, some in pins.requires.items() if other != name}
    unmet = _find_broken(others, versions, {**versions, name: version})
    if unmet:
        return _describe_forbidding(here, unmet)
    try:
        needed = context.environments.compile([wanted])
    except Unbuildable as error:
        return f": {error}"
    lines = {other: line.partition("==")[2] for other, line in needed.items()}
    for other, some in _find_broken(others, versions, {**versions, **lines}).items():
        try:
            context.environments.compile([wanted, here.lines[other]])
        except Unbuildable:
            return _describe_forbidding(here, {other: some})
    older = [other for other in pins.floors & lines.keys() if Version(lines[other]) < Version(versions[other])]
    if older:
        listed = (f"{other} {lines[other]}, and {other} {versions[other]} is installed" for other in sorted(older))
        return f": it needs {'; '.join(listed)}"
    if pins.conditions:
        try:
            context.environments.compile([wanted], pins.conditions)
        except Unbuildable:
            return f": {context.options.requirements} forbids it"
    return ""


def _find_broken(
    requires: Requirements, before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, list[Requirement]]:
    """Find by package the requirements that were met and no longer are."""
    known = requirements.find_unmet(before, requires)
    unmet = requirements.find_unmet(after, requires)
    new = {name: [one for one in some if one not in known.get(name, ())] for name, some in unmet.items()}
    return {name: some for name, some in new.items() if some}


def _describe_forbidding(here: Lock, unmet: Mapping[str, Sequence[Requirement]]) -> str:
    listed = [f"{name} {here.version(name)} requires {', '.join(map(str, some))}" for name, some in unmet.items()]
    return f": {'; '.join(listed)}"


def goes_back(change: PackageChange) -> bool:
    """Return whether a package goes back to an older version."""
    before, after = _parse_version(change.before), _parse_version(change.after)
    return before is not None and after is not None and after < before


def _parse_version(line: str | None) -> Version | None:
    """Parse the version of a line of a lock; None where it names none."""
    with suppress(InvalidVersion):
        return Version((line or "").partition("==")[2])
    return None
