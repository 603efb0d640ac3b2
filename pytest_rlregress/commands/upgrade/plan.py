"""Resolve an upgrade against the environment it is called in."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from pytest_rlregress.commands.environments import HARNESS, RequestError, requirements
from pytest_rlregress.commands.environments.indexes import find_newest, find_release
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.environments.resolver import list_movable
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.trial import LockChanges
from pytest_rlregress.commands.upgrade.request import (
    UpgradeRequest,
    explain_conflict,
    explain_stays,
    goes_back,
    parse_version,
)
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import Lock, PackageChange, differences
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
    changes = LockChanges(request.here, after, ("as it is here", "with all upgrades"))
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
    name, find = canonicalize_name(wanted.name), context.environments.find_release
    if not here.lines[name].startswith(f"{name}=="):
        raise RequestError(f"{name} does not come from an index here, but from {here.lines[name]}: it is left as it is")
    try:
        if exact := find_exact(wanted.specifier):
            return name, find_release(find, name, "version", exact).version
        return name, find_newest(find, name, str(wanted.specifier), context.options.pre).version
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None


def list_steps_back(changes: Iterable[PackageChange]) -> tuple[str, ...]:
    """List the trainers and engines that are taken back, each with how far: what takes one back is not called safe."""
    return tuple(
        f"{one.name} goes back from {parse_version(one.before)} to {parse_version(one.after)}"
        for one in changes
        if one.name in _TRAINERS_AND_ENGINES and goes_back(one)
    )
