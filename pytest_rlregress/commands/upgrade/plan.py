"""Resolve an upgrade against the environment it is called in, and say who forbids what cannot be installed here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pytest_rlregress.environments import HARNESS, RequestError
from pytest_rlregress.environments.resolver import Resolver, list_movable
from pytest_rlregress.environments.uv import Unbuildable
from pytest_rlregress.stack import COMPONENTS, locks, requirements
from pytest_rlregress.stack.locks import Lock, PackageChange, differences
from pytest_rlregress.stack.requirements import Requirements
from pytest_rlregress.trials.context import TrialContext
from pytest_rlregress.trials.upgrades import Upgrades
from pytest_rlregress.util.text import on_one_line

_TRAINERS_AND_ENGINES = {
    name for component in ("verl", "trl", "prime-rl", "vllm") for name in COMPONENTS[component].distributions
}


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


@dataclass(frozen=True)
class UpgradePlan:
    """An upgrade that can be resolved.

    Attributes:
        upgrades: From this environment to what it would be.
        requires: What the packages of this environment require of each other.
        asked: The packages that were asked for; all others move along.
        stays: Of those the ones whose newest release cannot be installed here, each in a sentence that says why.
        instead: Where a trainer or an engine goes back: the newest that can be had without that; () is to stay.
    """

    upgrades: Upgrades
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
    here = locks.installed().lines
    for word in words:
        try:
            one = Requirement(word)
        except InvalidRequirement as error:
            if re.match(r"[\w.-]+\s*[=<>!~]=", word):
                raise RequestError(f"{word!r} isn't a package with a version: {on_one_line(str(error))}") from None
            tests.append(word)
            continue
        name = canonicalize_name(one.name)
        if name not in here and not (one.specifier or one.extras or one.url):
            tests.append(word)
        elif name not in here:
            alike = (about.distributions for about in COMPONENTS.values() if name in about.distributions)
            instead = next((other for names in alike for other in names if other in here), None)
            more = f"; {instead} is, which takes its place" if instead else ""
            raise RequestError(f"{one.name} is not installed here{more}: an upgrade is of what is there")
        elif one.extras or one.url or one.marker:
            raise RequestError(f"{word}: of a package its name and its version can be said: {one.name}==VERSION")
        elif name == HARNESS:
            raise RequestError(f"{HARNESS} is what compares, and is the same on both sides: pip install -U {HARNESS}")
        else:
            packages.append(one)
    return packages, tests


def make_plan(context: TrialContext, packages: Sequence[Requirement]) -> UpgradePlan:
    """Resolve the upgrade that was asked for.

    A package that was named without a version stays behind its newest release where that cannot be installed here.

    Raises:
        RequestError: It cannot be resolved, and who forbids it; or the index has no such version, or cannot be asked.
        OSError: The file of requirements cannot be read.
    """
    request = _read_request(context, packages)
    free = {canonicalize_name(one.name): one for one in packages if find_exact(one.specifier) is None}
    stays: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    try:
        after = request.resolve()
    except Unbuildable as error:
        if not error.conflict:  # no network, a damaged wheel
            raise RequestError(f"the upgrade could not be resolved: {error}") from None
        looser = replace(
            request,
            wanted={name: version for name, version in request.wanted.items() if name not in free},
            newest=request.newest | free.keys(),
            conditions=(*request.conditions, *map(str, free.values())),
        )
        found = looser.try_to_resolve() if free else None
        if found is None or not free.keys() <= found.lines.keys():  # an older package may not need what was named
            context.progress.say("the upgrade cannot be resolved; looking for what forbids it")
            raise RequestError(explain_conflict(request)) from None
        after, stays = found, tuple(explain_stays(request, found, free))
    changes = Upgrades(request.here, after, ("as it is here", "with all upgrades"))
    if list_steps_back(changes.by_name.values()):
        forwards = replace(
            request,
            wanted={},
            newest=request.newest | request.wanted.keys(),
            may_go_back=request.may_go_back - _TRAINERS_AND_ENGINES,
        )
        instead = tuple(map(str, differences(request.here, forwards.try_to_resolve() or request.here)))
    return UpgradePlan(changes, request.requires, request.wanted.keys(), stays, instead)


def _read_request(context: TrialContext, packages: Sequence[Requirement]) -> UpgradeRequest:
    options, here = context.options, locks.installed()
    requires = requirements.read_requirements()
    wanted = dict(_find_version(context, here, one) for one in packages)
    may_go_back = frozenset(map(canonicalize_name, options.may_downgrade))
    if unknown := may_go_back - here.lines.keys():
        raise RequestError(f"--may-downgrade {', '.join(sorted(unknown))}: not installed here")
    return UpgradeRequest(
        here,
        requires,
        context.environments.resolver,
        wanted,
        newest=frozenset(list_movable(here, requires) - {HARNESS} - wanted.keys() if options.all else ()),
        may_go_back=may_go_back,
        conditions=read_conditions(options.requirements) if options.requirements else (),
        source=options.requirements,
    )


def read_conditions(path: Path) -> tuple[str, ...]:
    """Read a requirements file as conditions: without projects to install, which uv takes for none."""
    folder = path.parent.resolve()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    others = (re.sub(r"^\s*(-[rc]|--requirement|--constraint)[ =]+", rf"\1 {folder}/", line) for line in lines)
    return tuple(line for line in others if not re.match(r"\s*(-e|--editable)\b", line))


def find_exact(wanted: SpecifierSet) -> str | None:
    """Return the version that a condition names, if it names exactly one and says nothing else."""
    exact = re.fullmatch(r"={2,3}\s*([^*,]+)", str(wanted))
    return exact[1] if exact else None


def _find_version(context: TrialContext, here: Lock, wanted: Requirement) -> tuple[str, str]:
    """Find which release is wanted: exactly that one, or the newest that is meant."""
    name, releases = canonicalize_name(wanted.name), context.environments.releases
    if not here.lines[name].startswith(f"{name}=="):
        raise RequestError(f"{name} does not come from an index here, but from {here.lines[name]}: it is left as it is")
    try:
        if exact := find_exact(wanted.specifier):
            return name, releases.find_exact(name, "version", exact).version
        return name, releases.find_newest(name, str(wanted.specifier), context.options.pre).version
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None


def list_steps_back(changes: Iterable[PackageChange]) -> tuple[str, ...]:
    """List the trainers and engines that are taken back, each with how far: what takes one back is not called safe."""
    return tuple(
        f"{one.name} goes back from {parse_version(one.before)} to {parse_version(one.after)}"
        for one in changes
        if one.name in _TRAINERS_AND_ENGINES and goes_back(one)
    )


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
