"""Resolve an upgrade against the environment it is called in; where that cannot be, find which pin to loosen."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.environments import requirements, resolver
from pytest_rlregress.environments.constraints import Constraint, read_constraints
from pytest_rlregress.environments.contents import HARNESS
from pytest_rlregress.environments.index_settings import IndexProblem
from pytest_rlregress.environments.releases import find_newest, find_release, list_releases
from pytest_rlregress.environments.requirements import Requirements
from pytest_rlregress.environments.uv import Unbuildable, list_conflicts
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import Lock, PackageChange, differences
from pytest_rlregress.trials.context import RequestError, TrialContext
from pytest_rlregress.trials.progress import join_some
from pytest_rlregress.trials.upgrades import LockChanges
from pytest_rlregress.util.text import on_one_line

_TRIED = 8  # pins that are loosened to see whether that helps, at most: each takes the resolver seconds


@dataclass(frozen=True)
class UpgradePlan:
    """An upgrade that can be resolved.

    Attributes:
        locks: This environment, and as it would be.
        requires: What the packages of this environment require of each other.
        asked: The packages that were asked for, in the wanted versions; all others move along.
    """

    locks: LockChanges
    requires: Requirements
    asked: Mapping[str, str]


@dataclass(frozen=True)
class _Pins:
    """All that a resolution has to respect.

    Attributes:
        wanted: Version by name.
        newest: Packages that are moved to the newest version that all else allows.
        constraints: Of the user's file.
        floors: Packages that may not go back behind their version here.
        requires: What the packages of this environment require of each other.
    """

    wanted: Mapping[str, str]
    newest: frozenset[str]
    constraints: tuple[Constraint, ...]
    floors: frozenset[str]
    requires: Requirements


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
                raise RequestError(f"{word!r} is no package with a version: {on_one_line(str(error))}") from None
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

    Raises:
        RequestError: It cannot be resolved: the conflict, and which pins to loosen.
        IndexProblem: A version is not on the index, or that cannot be asked.
        LockError: The file of requirements cannot be read.
    """
    options, here = context.options, locks.installed()
    requires = requirements.read_requirements()
    wanted = dict(_find_version(context, here, one) for one in packages)
    constraints = read_constraints(options.requirements) if options.requirements else ()
    newest = resolver.list_movable(here, requires) - {HARNESS} if options.all else set[str]()
    pins = _Pins(
        wanted,
        frozenset(newest - wanted.keys()),
        constraints,
        _find_floors(context, here, wanted, constraints),
        requires,
    )
    try:
        after = _resolve(context, here, pins)
    except Unbuildable as error:
        raise RequestError(_explain_conflict(context, here, pins, error)) from None
    return UpgradePlan(LockChanges(here, after, ("as it is here", "with all upgrades")), requires, wanted)


def find_exact(wanted: SpecifierSet) -> str | None:
    """Return the version that a condition names, if it names exactly one and says nothing else."""
    exact = re.fullmatch(r"={2,3}\s*([^*,]+)", str(wanted))
    return exact[1] if exact else None


def _find_version(context: TrialContext, here: Lock, wanted: Requirement) -> tuple[str, str]:
    """Find which release is wanted: exactly that one, or the newest that is meant."""
    name, options = canonicalize_name(wanted.name), context.options
    if not here.lines[name].startswith(f"{name}=="):
        raise RequestError(f"{name} does not come from an index here, but from {here.lines[name]}: it is left as it is")
    released = list_releases(name, context.settings, options.cache_dir / "index", options.no_network)
    exact = find_exact(wanted.specifier)
    try:
        if exact:
            return name, find_release(released, "version", exact).version
        return name, find_newest(released, wanted.specifier, options.pre).version
    except IndexProblem as error:
        raise IndexProblem(f"{name}: {error}") from None


def _find_floors(
    context: TrialContext, here: Lock, wanted: Mapping[str, str], constraints: Sequence[Constraint]
) -> frozenset[str]:
    """Find the packages that may not go back: those from an index that nothing tells to be older."""
    allowed = {canonicalize_name(name) for name in context.options.may_downgrade}
    unknown = allowed - here.lines.keys()
    if unknown:
        raise RequestError(f"--may-downgrade {', '.join(sorted(unknown))}: not installed here")
    indexed = {name for name, line in here.lines.items() if line.startswith(f"{name}==") and "+" not in line}
    told = {
        one.name
        for one in constraints
        if one.name in indexed
        and not SpecifierSet(one.line.removeprefix(one.name)).contains(here.version(one.name) or "0", prereleases=True)
    }
    return frozenset(indexed - wanted.keys() - allowed - told)


def _resolve(context: TrialContext, here: Lock, pins: _Pins) -> Lock:
    floors = [f"{name}>={here.version(name)}" for name in sorted(pins.floors)]
    conditions = [*(one.line for one in pins.constraints), *floors]
    return context.environments.resolve(here, pins.wanted, pins.requires, newest=pins.newest, conditions=conditions)


# -- what cannot be resolved ------------------------------------------------------------------------------------------


def _explain_conflict(context: TrialContext, here: Lock, pins: _Pins, error: Unbuildable) -> str:
    """Say what is in conflict, all of it, and which pins can be loosened so that there is a solution."""
    conflicts = list_conflicts(error.text)
    if not conflicts:  # no network, a damaged wheel
        return f"the upgrade could not be resolved: {error}"
    _refuse_contradiction(context, pins.constraints)
    context.progress.say("the upgrade cannot be resolved; looking for the pin that is in the way")
    ways = []
    for words, looser in [("", pins), *_loosen(here, pins, " ".join(conflicts))][:_TRIED]:
        context.progress.set_activity(f"resolving without {words or 'the versions that are installed'}")
        way = _find_way(context, here, looser, words)
        ways += [f"  {way}"] if way else []
    remedy = "\n".join(["to loosen, any one of these:", *ways])
    if not ways:
        remedy = "no single pin loosened lets it be resolved: name other versions, or more packages"
    return f"the upgrade cannot be resolved: {conflicts[-1]}\n{remedy}"


def _find_way(context: TrialContext, here: Lock, pins: _Pins, words: str) -> str:
    """Say how it can be resolved with looser pins, if need be with others going back; "" where it cannot be."""
    for floors in dict.fromkeys((pins.floors, frozenset[str]())):
        if not words and floors:
            continue  # known to fail
        try:
            lock = _resolve(context, here, replace(pins, floors=floors))
        except Unbuildable:
            continue
        back = [one for one in differences(here, lock) if one.name in pins.floors and _goes_back(one)]
        allowed = " ".join(f"--may-downgrade {one.name}" for one in back)
        moved = join_some([str(one) for one in back])
        return ", and ".join(filter(None, [words, f"{allowed} ({moved})" if back else ""]))
    return ""


def _goes_back(change: PackageChange) -> bool:
    before, after = ((line or "").partition("==")[2] for line in (change.before, change.after))
    return bool(before) and bool(after) and Version(after) < Version(before)


def _refuse_contradiction(context: TrialContext, constraints: Collection[Constraint]) -> None:
    """Refuse a file of requirements that nothing can meet."""
    try:
        context.environments.check(one.line for one in constraints)
    except Unbuildable as error:
        conflicts = list_conflicts(error.text)
        if conflicts and "no usable wheels" not in error.text:
            raise RequestError(f"{context.options.requirements} contradicts itself: {conflicts[-1]}") from None


def _loosen(here: Lock, pins: _Pins, conflict: str) -> Iterator[tuple[str, _Pins]]:
    """The pins without one of those that a conflict names, one after the other, each with what that one is."""
    named = {canonicalize_name(word) for word in re.findall(r"[A-Za-z0-9][\w.-]*", conflict)}
    for constraint in pins.constraints:
        if constraint.name in named:
            others = tuple(one for one in pins.constraints if one != constraint)
            yield str(constraint), replace(pins, constraints=others)
    for name, required in pins.requires.items():
        if here.lines.get(name, "").startswith(f"{name}=="):
            continue  # not a project of the user's
        for one in required:
            if canonicalize_name(one.name) in named:
                rest = {**pins.requires, name: tuple(other for other in required if other is not one)}
                yield f"{one}, which {name} requires", replace(pins, requires=rest)
    for name, version in pins.wanted.items():
        if name in named and len(pins.wanted) > 1:
            rest_wanted = {other: pins.wanted[other] for other in pins.wanted if other != name}
            yield f"{name}=={version}, which was asked for", replace(pins, wanted=rest_wanted)
