"""Bisect the upgrades between two locks: the smallest set that flips a test, then the release of each."""

from __future__ import annotations

from importlib import metadata

from pytest_rlregress.commands.bisect import build_answer, one_package
from pytest_rlregress.commands.bisect.answer import Answer, ChangedSet, Culprit
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer, OrderedCandidates, follow_test
from pytest_rlregress.commands.environments import contents, requirements
from pytest_rlregress.commands.environments.contents import EnvironmentContents
from pytest_rlregress.commands.environments.index_settings import IndexProblem
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.trials import pytest_run, search
from pytest_rlregress.commands.trials.context import TrialContext, refuse_shadowed
from pytest_rlregress.commands.trials.search import MinimalSet, Units
from pytest_rlregress.commands.trials.trial import RequestError, State
from pytest_rlregress.commands.trials.upgrades import LockChanges, Upgrades, group_upgrades
from pytest_rlregress.records import reader
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, PackageChange


def bisect(context: TrialContext) -> Answer:
    """Find which upgrades, of those between two locks, made the test fail, and which release of each.

    Raises:
        LockError: A file holds no complete set of packages.
        RequestError: Both hold the same, or PYTHONPATH has a package that differs.
    """
    options = context.options
    paths = options.good_lock or options.from_record, options.bad_lock or options.to_record
    read = locks.read if options.good_lock else reader.lock
    good, bad = (contents.complete_lock(read(path), options.with_editable) for path in paths)
    if good == bad:
        raise RequestError(f"{paths[0]} and {paths[1]} hold the same packages: there is nothing to bisect")
    changed = LockChanges(good, bad, ("the good lock", "the bad lock"))
    refuse_shadowed(changed.by_name)
    context.progress.say(f"{len(changed.by_name)} packages differ between {paths[0]} and {paths[1]}")
    ends = changed.candidate(()), changed.candidate(changed.by_name)
    with context.runner({"good": good.digest, "bad": bad.digest}) as runner:
        try:
            followed = follow_test(*ends, runner, context.progress)
        except NoAnswer as error:
            return build_answer.build_not_found(context, error.why, ends, runner, EnvironmentContents(good, {}))
        requires = _read_requirements(context, good), _read_requirements(context, bad)
        upgrades = group_upgrades(changed, requires)
        found = find_minimal_set(upgrades, followed)
        needed = upgrades.names(frozenset().union(*found.culprits))
        alone = [next(iter(units)) for units in found.culprits if len(units) == 1]
        culprits = [_find_release(context, upgrades, requires, followed, unit, needed) for unit in alone]
        return build_answer.build_found(
            context,
            followed,
            EnvironmentContents(good.having(dict.fromkeys(changed.by_name)), {}),
            build_answer.build_command(context, *build_answer.list_end_options(context)),
            culprits=[one for one in culprits if one is not None],
            edge=(ends[0], changed.candidate(needed)),
            changed=_make_changed_set(upgrades, found),
        )


def find_minimal_set(upgrades: Upgrades, followed: FollowedTest) -> MinimalSet:
    """Try sets of upgrades until the smallest one is found that flips the test; both ends were tried."""
    states = {frozenset[str](): State.GOOD, frozenset(upgrades.units.order): State.BAD}
    while True:
        step = search.next_set(upgrades.units.order, upgrades.units.needs, states)
        if isinstance(step, MinimalSet):
            return step
        states[step.subset] = followed.try_(upgrades.candidate(step.subset)).state


def _make_changed_set(upgrades: Upgrades, found: MinimalSet) -> ChangedSet:
    def describe(units: Units) -> tuple[str, ...]:
        return tuple(
            str(upgrades.locks.by_name[name])
            for name in sorted(one for unit in units for one in upgrades.units.members[unit])
        )

    culprits = frozenset[str]().union(*found.culprits)
    return ChangedSet(
        len(upgrades.locks.by_name),
        describe(culprits),
        describe(frozenset(need for unit in culprits for need in upgrades.units.needs[unit]) - culprits),
        proven=found.proven,
        groups=tuple(members for members in upgrades.units.members.values() if len(members) > 1),
        undecided=tuple(describe(one) for one in found.culprits if len(one) > 1),
    )


def _find_release(
    context: TrialContext,
    upgrades: Upgrades,
    requires: tuple[Requirements, Requirements],
    followed: FollowedTest,
    unit: str,
    needed: list[str],
) -> Culprit | None:
    """Find the release of an upgrade, with the others that are needed in place; None where none can be tried."""
    others = [name for name in needed if name not in upgrades.units.members[unit]]
    before, after = map(upgrades.locks.apply, (others, needed))
    held = EnvironmentContents(
        before, {**requires[0], **{name: requires[1][name] for name in others if name in requires[1]}}
    )
    found = [
        _find_candidates(context, upgrades.locks.by_name[name], held, after) for name in upgrades.units.members[unit]
    ]
    # Of packages that can only be moved together that one leads, and the others follow, which the tests say they need.
    needed_packages = contents.list_distributions(pytest_run.list_declared_needs(context.request) or ())
    releases = max(
        filter(None, found), key=lambda one: (one.name in needed_packages, len(one.candidates)), default=None
    )
    if releases is None:
        return None
    ends = [followed.try_(releases.candidates[at]).state for at in (0, -1)]
    if ends != [State.GOOD, State.BAD]:
        return None
    try:
        return one_package.find_first_bad(context, releases, followed)
    except NoAnswer:
        return None


def _find_candidates(
    context: TrialContext, change: PackageChange, held: EnvironmentContents, after: Lock
) -> OrderedCandidates | None:
    """Find the releases of an upgraded package; None where it was added, removed, or is not from an index."""
    name, ends = change.name, (held.lock.version(change.name) or "", after.version(change.name) or "")
    if any(f"{name}=={end}" != line for end, line in zip(ends, (change.before, change.after), strict=True)):
        return None
    try:
        return one_package.find_candidates(context, name, *ends, held, {ends[0]: held.lock, ends[1]: after})
    except IndexProblem as error:
        context.progress.say(f"the releases of {name} cannot be listed: {error}")
        return None


def _read_requirements(context: TrialContext, lock: Lock) -> Requirements:
    return requirements.read_requirements(metadata.distributions(path=[str(context.environments.build(lock).packages)]))
