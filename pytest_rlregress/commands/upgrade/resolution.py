"""Resolve what an upgrade asks for, and say who forbids what cannot be installed here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from pytest_rlregress.commands.environments import requirements
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.stack.locks import Lock, PackageChange, differences


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
        before, after = read_version(one.before), read_version(one.after)
        if one.name not in pins.wanted and _is_prerelease(after):
            stays = _is_prerelease(before)
            found.append(f"{one.name}=={before}" if stays else f"{one.name}<{Version(after).base_version}")
    return found


def _is_prerelease(version: str) -> bool:
    with suppress(InvalidVersion):
        return Version(version).is_prerelease
    return False


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
    older = [other for other in pins.floors & lines.keys() if _is_older(lines[other], versions[other])]
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
    return _is_older(read_version(change.after), read_version(change.before))


def _is_older(one: str, other: str) -> bool:
    """Return whether a version is older than another one; False if one isn't a version."""
    with suppress(InvalidVersion):
        return Version(one) < Version(other)
    return False


def read_version(line: str | None) -> str:
    """Read the version of a line of a lock; "" where it names none."""
    return (line or "").partition("==")[2]
