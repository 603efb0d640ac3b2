"""Resolve an upgrade against the environment it is called in; say who forbids what cannot be installed here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from pytest_rlregress.commands.environments import requirements, resolver
from pytest_rlregress.commands.environments.contents import HARNESS
from pytest_rlregress.commands.environments.index_settings import IndexProblem
from pytest_rlregress.commands.environments.releases import find_newest, find_release
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.trial import RequestError
from pytest_rlregress.commands.trials.upgrades import LockChanges
from pytest_rlregress.commands.upgrade import resolution
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import Lock, LockError, PackageChange
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

    A package that was named without a version stays behind its newest release where that cannot be installed here.

    Raises:
        RequestError: It cannot be resolved: who forbids it.
        IndexProblem: A version is not on the index, or that cannot be asked.
        LockError: The file of requirements cannot be read.
    """
    options, here = context.options, locks.installed()
    requires = requirements.read_requirements()
    wanted = dict(_find_version(context, here, one) for one in packages)
    conditions = _read_conditions(options.requirements) if options.requirements else ()
    newest = frozenset(resolver.list_movable(here, requires) - {HARNESS} if options.all else ())
    free = {canonicalize_name(one.name): one for one in packages if find_exact(one.specifier) is None}
    allowed = _read_allowed(options.may_downgrade, here)
    floors = resolution.find_floors(here, wanted.keys() | allowed)
    pins = resolution.Pins(wanted, newest - wanted.keys(), conditions, floors, requires)
    stays: tuple[str, ...] = ()
    try:
        after = resolution.resolve(context, here, pins)
    except Unbuildable as error:
        if "No solution found" not in error.text:  # no network, a damaged wheel
            raise RequestError(f"the upgrade could not be resolved: {error}") from None
        looser = replace(
            pins,
            wanted={name: version for name, version in wanted.items() if name not in free},
            newest=newest | free.keys(),
            conditions=(*conditions, *map(str, free.values())),
            floors=resolution.find_floors(here, (wanted.keys() - free.keys()) | allowed),
        )
        try:
            if not free:
                raise
            after = resolution.resolve(context, here, looser)
        except Unbuildable:
            raise RequestError(resolution.explain_conflict(context, here, pins)) from None
        stays = resolution.explain_stays(context, here, after, pins, free)
    changes = LockChanges(here, after, ("as it is here", "with all upgrades"))
    instead: tuple[str, ...] = ()
    if list_steps_back(changes.by_name.values()):
        instead = resolution.find_instead(
            context, here, replace(pins, floors=resolution.find_floors(here, allowed - _TRAINERS_AND_ENGINES))
        )
    return UpgradePlan(changes, requires, wanted.keys(), stays, instead)


def list_steps_back(changes: Iterable[PackageChange]) -> tuple[str, ...]:
    """List the trainers and engines that are taken back, each with how far: what takes one back is not called safe."""
    return tuple(
        f"{one.name} goes back from {resolution.read_version(one.before)} to {resolution.read_version(one.after)}"
        for one in changes
        if one.name in _TRAINERS_AND_ENGINES and resolution.goes_back(one)
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
    except IndexProblem as error:
        raise IndexProblem(f"{name}: {error}") from None


def _read_allowed(names: Iterable[str], here: Lock) -> frozenset[str]:
    allowed = frozenset(map(canonicalize_name, names))
    unknown = allowed - here.lines.keys()
    if unknown:
        raise RequestError(f"--may-downgrade {', '.join(sorted(unknown))}: not installed here")
    return allowed
