"""The conditions of an upgrade: resolve it under them, and say who forbids what cannot be installed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from pytest_rlregress.commands.environments import requirements
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.environments.resolver import Resolver
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.stack.locks import Lock, PackageChange, differences


@dataclass(frozen=True)
class UpgradeRequest:
    """All that an upgrade has to respect.

    Attributes:
        here: The lock of this environment.
        requires: What its packages require of each other.
        resolver: What resolves it.
        wanted: Version by name.
        newest: Packages that are moved to the newest version that all else allows.
        may_go_back: Packages that can be taken back behind their version here, beside the wanted ones.
        conditions: Of the user: lines of a requirements file.
        source: That file.
    """

    here: Lock
    requires: Requirements
    resolver: Resolver
    wanted: Mapping[str, str]
    newest: frozenset[str] = frozenset()
    may_go_back: frozenset[str] = frozenset()
    conditions: tuple[str, ...] = ()
    source: Path | None = None

    @property
    def floors(self) -> Mapping[str, str]:
        """The versions behind which packages stay: those from an index, but for builds such as +cpu."""
        lines = {name: line for name, line in self.here.lines.items() if line.startswith(f"{name}==")}
        held = {name: line.partition("==")[2] for name, line in lines.items() if "+" not in line}
        return {name: held[name] for name in sorted(held.keys() - self.wanted.keys() - self.may_go_back)}

    def resolve(self) -> Lock:
        """Resolve it.

        Raises:
            Unbuildable: There is no such set.
        """
        conditions = (*self.conditions, *(f"{name}>={version}" for name, version in self.floors.items()))
        return self.resolver.resolve(self.here, self.wanted, self.requires, newest=self.newest, conditions=conditions)

    def try_to_resolve(self) -> Lock | None:
        """Resolve it; None where that cannot be."""
        with suppress(Unbuildable):
            return self.resolve()
        return None


def goes_back(change: PackageChange) -> bool:
    """Return whether a package goes back to an older version."""
    before, after = parse_version(change.before), parse_version(change.after)
    return before is not None and after is not None and after < before


def parse_version(line: str | None) -> Version | None:
    """Parse the version of a line of a lock; None where it names none."""
    with suppress(InvalidVersion):
        return Version((line or "").partition("==")[2])
    return None


# -- who forbids it ---------------------------------------------------------------------------------------------------


def explain_stays(request: UpgradeRequest, after: Lock, free: Iterable[str]) -> Iterator[str]:
    """Say of each package that stays behind its newest release who forbids that."""
    for name in free:
        version, newest = after.version(name) or "0", request.wanted[name]
        if Version(version) < Version(newest):
            moved = "goes to" if after.lines[name] != request.here.lines[name] else "stays at"
            why = _find_forbidding(request, name)
            yield f"{name} {moved} {version}: {newest} cannot be installed here{why}"


def explain_conflict(request: UpgradeRequest) -> str:
    """Say in a sentence which package cannot be installed and why, and in another which package could be downgraded."""
    named = [(f"{name} {version}", _find_forbidding(request, name)) for name, version in request.wanted.items()]
    words = " and ".join(one for one, _ in named) or "all of this"
    text = "; ".join(f"{one} cannot be installed here{why}" for one, why in named if why)
    text = text or f"{words} cannot be installed here with all else that is asked for"
    lock = replace(request, may_go_back=frozenset(request.here.lines)).try_to_resolve()
    changes = differences(request.here, lock) if lock else ()
    back = [one for one in changes if one.name in request.floors and goes_back(one)]
    if not back:
        return text
    return (
        f"{text}. It can with {' '.join(f'--may-downgrade {one.name}' for one in back)} ({', '.join(map(str, back))})"
    )


def _find_forbidding(request: UpgradeRequest, name: str) -> str:
    """Say who forbids a release, as ``: numba 0.66 requires numpy<2.5``; "" where no single package does.

    What requires another version of it; else what requires another version of something that the release itself needs,
    and cannot be installed beside it.
    """
    here, compile_ = request.here, request.resolver.compile
    wanted = f"{name}=={request.wanted[name]}"
    versions = {other: here.version(other) or "" for other in here.lines}
    others = {other: some for other, some in request.requires.items() if other != name}
    if unmet := _find_broken(others, versions, {**versions, name: request.wanted[name]}):
        return _describe_forbidding(here, unmet)
    try:
        needed = {other: line.partition("==")[2] for other, line in compile_([wanted]).items()}
    except Unbuildable as error:
        return f": {error}"
    for other, some in _find_broken(others, versions, {**versions, **needed}).items():
        try:
            compile_([wanted, here.lines[other]])
        except Unbuildable:
            return _describe_forbidding(here, {other: some})
    floors = {other: version for other, version in request.floors.items() if other in needed}
    older = [other for other, version in floors.items() if Version(needed[other]) < Version(version)]
    if older:
        listed = (f"{other} {needed[other]}, and {other} {floors[other]} is installed" for other in older)
        return f": it needs {'; '.join(listed)}"
    try:
        compile_([wanted], request.conditions)
    except Unbuildable:
        return f": {request.source} forbids it"
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
