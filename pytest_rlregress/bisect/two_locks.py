"""Bisect the upgrades between two locks: the smallest set that flips a test, then the release of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata

from pytest_rlregress.bisect import build_answer, one_package, search
from pytest_rlregress.bisect.answers import progress
from pytest_rlregress.bisect.answers.answer import Answer, ChangedSet, Culprit
from pytest_rlregress.bisect.answers.progress import ProgressWindow
from pytest_rlregress.bisect.context import BisectContext, BisectError
from pytest_rlregress.bisect.follow import FollowedTest, NoAnswer, follow_test
from pytest_rlregress.bisect.search import MinimalSet, Units
from pytest_rlregress.bisect.trials.observations import State
from pytest_rlregress.bisect.trials.runner import Candidate
from pytest_rlregress.environments import contents, requirements
from pytest_rlregress.environments.contents import EnvironmentContents
from pytest_rlregress.environments.index_settings import IndexProblem
from pytest_rlregress.environments.requirements import Requirements
from pytest_rlregress.records import reader
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, PackageChange, differences


def bisect(context: BisectContext) -> Answer:
    """Find which upgrades, of those between two locks, made the test fail, and which release of each.

    Raises:
        LockError: A file holds no complete set of packages.
        BisectError: Both hold the same.
    """
    options = context.options
    paths = options.good_lock or options.from_record, options.bad_lock or options.to_record
    read = locks.read if options.good_lock else reader.lock
    good, bad = (contents.complete_lock(read(path), options.with_editable) for path in paths)
    if good == bad:
        raise BisectError(f"{paths[0]} and {paths[1]} hold the same packages: there is nothing to bisect")
    changes = {change.name: change for change in differences(good, bad)}
    context.progress.say(f"{len(changes)} packages differ between {paths[0]} and {paths[1]}")
    ends = _candidate(good, changes, ()), _candidate(good, changes, changes)
    with context.runner({"good": good.digest, "bad": bad.digest}) as runner:
        try:
            followed = follow_test(*ends, runner, context.progress)
        except NoAnswer as error:
            return build_answer.build_not_found(context, error.why, ends, runner, good)
        requires = _read_requirements(context, good), _read_requirements(context, bad)
        together = requirements.group_changes(
            [*changes.values()], (_versions(good), requires[0]), (_versions(bad), requires[1])
        )
        upgrades = Upgrades(good, changes, *together)
        found = find_minimal_set(upgrades, followed)
        needed = upgrades.names(frozenset().union(*found.culprits))
        alone = [next(iter(units)) for units in found.culprits if len(units) == 1]
        culprits = [_find_release(context, upgrades, requires, followed, unit, needed) for unit in alone]
        return build_answer.build_found(
            context,
            followed,
            good.having(dict.fromkeys(changes)),
            build_answer.build_command(context, *build_answer.list_end_options(context)),
            culprits=[one for one in culprits if one is not None],
            edge=(ends[0], _candidate(good, changes, needed)),
            changed=_make_changed_set(upgrades, found),
        )


@dataclass(frozen=True)
class Upgrades:
    """What changed between two locks.

    Attributes:
        good: The lock of the good end.
        changes: Every package that differs, by name.
        order: Units, the packages that can only be moved together, each after those it needs.
        needs: The units that must move with one.
        members: The packages of a unit.
    """

    good: Lock
    changes: Mapping[str, PackageChange]
    order: tuple[str, ...]
    needs: Mapping[str, Units]
    members: Mapping[str, tuple[str, ...]]

    def names(self, units: Iterable[str]) -> list[str]:
        """The packages of some units and of those that they need."""
        closed = {need for unit in units for need in (unit, *self.needs.get(unit, ()))}
        return sorted(name for unit in closed for name in self.members[unit])

    def candidate(self, units: Units) -> Candidate:
        """The good lock with these units as in the bad one."""
        return _candidate(self.good, self.changes, self.names(units))


def _candidate(good: Lock, changes: Mapping[str, PackageChange], names: Iterable[str]) -> Candidate:
    """The good lock with these packages as in the bad one."""
    chosen = sorted(names)
    lock = _upgrade(good, changes, chosen)
    label = f"{len(chosen)} of {len(changes)} upgrades ({lock.digest[:6]}): {progress.join_some(chosen)}"
    label = {0: "the good lock", len(changes): "the bad lock"}.get(len(chosen), label)
    return Candidate(label, lambda: lock, good, frozenset(chosen))


def _upgrade(good: Lock, changes: Mapping[str, PackageChange], names: Iterable[str]) -> Lock:
    return good.having({name: changes[name].after for name in names})


def find_minimal_set(upgrades: Upgrades, followed: FollowedTest) -> MinimalSet:
    """Try sets of upgrades until the smallest one is found that flips the test; both ends were tried."""
    states = {frozenset[str](): State.GOOD, frozenset(upgrades.order): State.BAD}
    while True:
        step = search.next_set(upgrades.order, upgrades.needs, states)
        if isinstance(step, MinimalSet):
            return step
        found = followed.try_(upgrades.candidate(step.subset), partial(_window, upgrades, states, step.subset))
        states[step.subset] = found.state


def _window(upgrades: Upgrades, states: Mapping[Units, State], subset: Units, state: State) -> ProgressWindow:
    """Which packages are still suspected once a set of units has been tried."""
    known = {**states, subset: state}
    bad = min((units for units, seen in known.items() if seen is State.BAD), key=len)
    good = max((units for units, seen in known.items() if seen is State.GOOD and units < bad), key=len)
    suspects = bad - good
    names = sorted(name for unit in suspects for name in upgrades.members[unit])
    return ProgressWindow(progress.join_some(names), len(suspects), (len(suspects) - 1).bit_length() + 1)


def _make_changed_set(upgrades: Upgrades, found: MinimalSet) -> ChangedSet:
    def describe(units: Units) -> tuple[str, ...]:
        return tuple(
            str(upgrades.changes[name]) for name in sorted(one for unit in units for one in upgrades.members[unit])
        )

    culprits = frozenset[str]().union(*found.culprits)
    return ChangedSet(
        len(upgrades.changes),
        describe(culprits),
        describe(frozenset(need for unit in culprits for need in upgrades.needs[unit]) - culprits),
        proven=found.proven,
        groups=tuple(members for members in upgrades.members.values() if len(members) > 1),
        undecided=tuple(describe(one) for one in found.culprits if len(one) > 1),
    )


def _find_release(
    context: BisectContext,
    upgrades: Upgrades,
    requires: tuple[Requirements, Requirements],
    followed: FollowedTest,
    unit: str,
    needed: list[str],
) -> Culprit | None:
    """Find the release of an upgrade, with the others that are needed in place; None where none can be tried."""
    others = [name for name in needed if name not in upgrades.members[unit]]
    before, after = (_upgrade(upgrades.good, upgrades.changes, names) for names in (others, needed))
    held = EnvironmentContents(
        before, {**requires[0], **{name: requires[1][name] for name in others if name in requires[1]}}
    )
    found = [_find_candidates(context, upgrades.changes[name], held, after) for name in upgrades.members[unit]]
    # Of packages that can only be moved together that one leads, and the others follow, which the tests say they need.
    needed_packages = contents.list_distributions(context.needed_components or ())
    releases = max(
        filter(None, found), key=lambda one: (one.package in needed_packages, len(one.candidates)), default=None
    )
    if releases is None:
        return None
    ends = [followed.try_(releases.candidates[at], lambda _: None).state for at in (0, -1)]
    if ends != [State.GOOD, State.BAD]:
        return None
    try:
        return one_package.find_first_bad(releases, followed)
    except NoAnswer:
        return None


def _find_candidates(
    context: BisectContext, change: PackageChange, held: EnvironmentContents, after: Lock
) -> one_package.ReleaseCandidates | None:
    """Find the releases of an upgraded package; None where it was added, removed, or is not from an index."""
    name, ends = change.name, (held.lock.version(change.name) or "", after.version(change.name) or "")
    if any(f"{name}=={end}" != line for end, line in zip(ends, (change.before, change.after), strict=True)):
        return None
    try:
        return one_package.find_candidates(context, name, *ends, held, {ends[0]: held.lock, ends[1]: after})
    except IndexProblem as error:
        context.progress.say(f"the releases of {name} cannot be listed: {error}")
        return None


def _read_requirements(context: BisectContext, lock: Lock) -> Requirements:
    return requirements.read_requirements(metadata.distributions(path=[str(context.environments.build(lock).packages)]))


def _versions(lock: Lock) -> dict[str, str]:
    return {name: lock.version(name) or "" for name in lock.lines}
