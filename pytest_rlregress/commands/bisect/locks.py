"""Bisect what changed between two locks: the smallest set of upgrades that flips the test, then the release of each."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

from pytest_rlregress.commands.bisect.answer import Answer, ChangedSet, Culprit
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer
from pytest_rlregress.commands.bisect.releases import (
    EnvironmentContents,
    Found,
    build_command,
    find_answer,
    find_first_bad_release,
    find_releases,
    list_distributions,
)
from pytest_rlregress.environments import HARNESS, RequestError
from pytest_rlregress.records import reader
from pytest_rlregress.stack import COMPONENTS, locks, requirements
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.stack.requirements import Requirements
from pytest_rlregress.trials import search
from pytest_rlregress.trials.context import TrialContext, refuse_shadowed
from pytest_rlregress.trials.search import MinimalSet, State, Units
from pytest_rlregress.trials.upgrades import Upgrades, UpgradeUnits


def bisect_locks(context: TrialContext) -> Answer:
    """Find which upgrades, of those between two locks, made the test fail, and which release of each.

    Raises:
        LockError: A file holds no complete set of packages.
        RequestError: Both hold the same, or PYTHONPATH has a package that differs.
    """
    options = context.options
    paths = options.good_lock or options.from_record, options.bad_lock or options.to_record
    read = locks.read if options.good_lock else reader.lock
    good, bad = (_add_harness(read(path)) for path in paths)
    if good == bad:
        raise RequestError(f"{paths[0]} and {paths[1]} hold the same packages: there is nothing to bisect")
    upgrades = Upgrades(good, bad, ("the good lock", "the bad lock"))
    refuse_shadowed(upgrades.by_name)
    context.progress.say(f"{len(upgrades.by_name)} packages differ between {paths[0]} and {paths[1]}")

    def find(followed: FollowedTest) -> Found:
        built = (context.environments.build(lock).packages for lock in (good, bad))
        before, after = (requirements.read_requirements(metadata.distributions(path=[str(one)])) for one in built)
        units = upgrades.group((before, after))
        found = find_minimal_set(upgrades, units, followed)
        alone = [next(iter(some)) for some in found.culprits if len(some) == 1]
        needed = units.names(frozenset().union(*found.culprits))
        culprits = (
            _find_release(context, upgrades, (before, after), followed, units.members[unit], needed) for unit in alone
        )
        return Found(tuple(filter(None, culprits)), build_command(context), _make_changed_set(upgrades, units, found))

    ends = upgrades.candidate(()), upgrades.candidate(upgrades.by_name)
    held = EnvironmentContents(good.having(dict.fromkeys(upgrades.by_name)), {})
    return find_answer(context, held, ends, {"good": good.digest, "bad": bad.digest}, find)


def _add_harness(lock: Lock) -> Lock:
    """Add to a lock that someone else wrote this harness, and what it needs and the lock lacks."""
    here = locks.installed().lines
    needed = requirements.find_dependencies({HARNESS}, requirements.read_requirements())
    missing = needed & here.keys() - lock.lines.keys()
    return lock.having({name: here[name] for name in {*missing, HARNESS}})


def find_flipped_test(before: Path, after: Path) -> str:
    """Find the one failure or test that went from good to bad between two records.

    Raises:
        RequestError: There is none, or more than one.
    """
    found = list(dict.fromkeys(test.extra.failure or test.name for _, test in reader.flipped(before, after)))
    if not found:
        raise RequestError(f"no test went from good in {before} to bad in {after}: name one")
    if len(found) > 1:
        raise RequestError(f"{len(found)} went from good to bad, name one of them: {', '.join(found)}")
    return found[0]


def find_minimal_set(upgrades: Upgrades, units: UpgradeUnits, followed: FollowedTest) -> MinimalSet:
    """Try sets of upgrades until the smallest one is found that flips the test; both ends were tried."""
    states = {frozenset[str](): State.GOOD, frozenset(units.order): State.BAD}
    while True:
        step = search.next_set(units.order, units.needs, states)
        if isinstance(step, MinimalSet):
            return step
        states[step.subset] = followed.try_(upgrades.candidate(units.names(step.subset))).state


def _make_changed_set(upgrades: Upgrades, units: UpgradeUnits, found: MinimalSet) -> ChangedSet:
    def describe(some: Units) -> tuple[str, ...]:
        names = sorted(one for unit in some for one in units.members[unit])
        return tuple(str(upgrades.by_name[name]) for name in names)

    culprits = frozenset[str]().union(*found.culprits)
    needed = frozenset(need for unit in culprits for need in units.needs[unit])
    return ChangedSet(
        len(upgrades.by_name),
        describe(culprits),
        describe(needed - culprits),
        proven=found.proven,
        undecided=tuple(describe(one) for one in found.culprits if len(one) > 1),
    )


def _find_release(
    context: TrialContext,
    upgrades: Upgrades,
    requires: tuple[Requirements, Requirements],
    followed: FollowedTest,
    members: tuple[str, ...],
    needed: list[str],
) -> Culprit | None:
    """Find the release of a unit, with the other upgrades that are needed in place; None where none can be tried."""
    others = [name for name in needed if name not in members]
    ends = tuple(map(upgrades.candidate, (others, needed)))
    before, after = (one.lock() for one in ends)
    held = EnvironmentContents(
        before, {**requires[0], **{name: requires[1][name] for name in others if name in requires[1]}}
    )
    found = []
    for name in members:
        versions = before.version(name) or "", after.version(name) or ""
        if any(f"{name}=={one}" != lock.lines.get(name) for one, lock in zip(versions, (before, after), strict=True)):
            continue  # it was added, removed, or is not from an index
        known = {version: replace(end, name=version) for version, end in zip(versions, ends, strict=True)}
        try:
            found.append(find_releases(context, held, name, versions, known))
        except RequestError as error:
            context.progress.say(f"the releases of {name} cannot be listed: {error}")
    # Of packages that can only be moved together one of the stack's components leads, and the others follow.
    stack = list_distributions(COMPONENTS)
    among = max(found, key=lambda one: (one.name in stack, len(one.candidates)), default=None)
    if among is None or [followed.try_(among.candidates[at]).state for at in (0, -1)] != [State.GOOD, State.BAD]:
        return None
    try:
        return find_first_bad_release(context, among, followed)
    except NoAnswer:
        return None
