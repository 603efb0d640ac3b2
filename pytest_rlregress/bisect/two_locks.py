"""Which of many packages that changed between two locks: the smallest set of upgrades that flips a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata

from pytest_rlregress.bisect import build_answer, one_package, search
from pytest_rlregress.bisect.answers import progress
from pytest_rlregress.bisect.answers.answer import Answer, ChangedSet, Culprit
from pytest_rlregress.bisect.answers.progress import ProgressWindow
from pytest_rlregress.bisect.context import BisectContext, NoBisect
from pytest_rlregress.bisect.followed_test import FollowedTest, NoAnswer, follow
from pytest_rlregress.bisect.search import SearchResult, Units
from pytest_rlregress.bisect.trials.observations import State
from pytest_rlregress.bisect.trials.runner import Candidate
from pytest_rlregress.environments import contents, requirements
from pytest_rlregress.environments.contents import EnvironmentContents
from pytest_rlregress.environments.releases import IndexProblem
from pytest_rlregress.environments.requirements import Wishes
from pytest_rlregress.records import reader
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, PackageChange, differences


def bisect(work: BisectContext) -> Answer:
    """Which upgrades, of those between two locks, and which release of each.

    Raises:
        LockError: A file holds no complete set of packages.
        NoBisect: Both hold the same.
    """
    options = work.options
    paths = options.good_lock or options.from_record, options.bad_lock or options.to_record
    read = locks.read if options.good_lock else reader.lock
    good, bad = (contents.complete(read(path), options.with_editable) for path in paths)
    if good == bad:
        raise NoBisect(f"{paths[0]} and {paths[1]} hold the same packages: there is nothing to bisect")
    changes = {change.name: change for change in differences(good, bad)}
    work.progress.say(f"{len(changes)} packages differ between {paths[0]} and {paths[1]}")
    ends = _candidate(good, changes, ()), _candidate(good, changes, changes)
    with work.runner({"good": good.digest, "bad": bad.digest}) as runner:
        try:
            case = follow(*ends, runner, work.progress)
        except NoAnswer as error:
            return build_answer.not_found(work, error.why, ends, runner, good)
        asked = _wishes(work, good), _wishes(work, bad)
        together = requirements.together([*changes.values()], (_versions(good), asked[0]), (_versions(bad), asked[1]))
        upgrades = Upgrades(good, changes, *together)
        found = reduce(upgrades, case)
        needed = upgrades.names(frozenset().union(*found.culprits))
        alone = [next(iter(units)) for units in found.culprits if len(units) == 1]
        culprits = [_release(work, upgrades, asked, case, unit, needed) for unit in alone]
        return build_answer.found(
            work,
            case,
            good.having(dict.fromkeys(changes)),
            build_answer.command(work, *build_answer.asked(work)),
            culprits=[one for one in culprits if one is not None],
            edge=(ends[0], _candidate(good, changes, needed)),
            changed=_changed(upgrades, found),
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
    lock = good.having({name: changes[name].after for name in chosen})
    label = f"{len(chosen)} of {len(changes)} upgrades ({lock.digest[:6]}): {progress.among(chosen)}"
    label = {0: "the good lock", len(changes): "the bad lock"}.get(len(chosen), label)
    return Candidate(label, lambda: lock, good, frozenset(chosen))


def reduce(upgrades: Upgrades, case: FollowedTest) -> SearchResult:
    """Try sets of upgrades until the smallest one is found that flips the test; both ends were tried."""
    states = {frozenset[str](): State.GOOD, frozenset(upgrades.order): State.BAD}
    while True:
        step = search.culprits(upgrades.order, upgrades.needs, states)
        if isinstance(step, SearchResult):
            return step
        found = case.try_(upgrades.candidate(step.subset), partial(_window, upgrades, states, step.subset))
        states[step.subset] = found.state


def _window(upgrades: Upgrades, states: Mapping[Units, State], subset: Units, state: State) -> ProgressWindow:
    """Which packages are still suspected once a set of units has been tried."""
    known = {**states, subset: state}
    bad = min((units for units, seen in known.items() if seen is State.BAD), key=len)
    good = max((units for units, seen in known.items() if seen is State.GOOD and units < bad), key=len)
    suspects = bad - good
    names = sorted(name for unit in suspects for name in upgrades.members[unit])
    return ProgressWindow(progress.among(names), len(suspects), (len(suspects) - 1).bit_length() + 1)


def _changed(upgrades: Upgrades, found: SearchResult) -> ChangedSet:
    def told(units: Units) -> tuple[str, ...]:
        return tuple(
            str(upgrades.changes[name]) for name in sorted(one for unit in units for one in upgrades.members[unit])
        )

    culprits = frozenset[str]().union(*found.culprits)
    return ChangedSet(
        len(upgrades.changes),
        told(culprits),
        told(frozenset(need for unit in culprits for need in upgrades.needs[unit]) - culprits),
        least=found.proven,
        groups=tuple(members for members in upgrades.members.values() if len(members) > 1),
        undecided=tuple(told(one) for one in found.culprits if len(one) > 1),
    )


def _release(
    work: BisectContext,
    upgrades: Upgrades,
    asked: tuple[Wishes, Wishes],
    case: FollowedTest,
    unit: str,
    needed: list[str],
) -> Culprit | None:
    """Which release of an upgrade, the other upgrades that are needed being in place; None where none can be tried."""
    others = [name for name in needed if name not in upgrades.members[unit]]
    before = upgrades.good.having({name: upgrades.changes[name].after for name in others})
    after = upgrades.good.having({name: upgrades.changes[name].after for name in needed})
    held = EnvironmentContents(before, {**asked[0], **{name: asked[1][name] for name in others if name in asked[1]}})
    spans = [_between(work, upgrades.changes[name], held, after) for name in upgrades.members[unit]]
    # Of packages that can only be moved together that one leads, and the others follow, which the tests say they need.
    said = contents.distributions(work.needed or ())
    span = max(filter(None, spans), key=lambda one: (one.of.package in said, len(one.candidates)), default=None)
    if span is None:
        return None
    ends = [case.try_(candidate, lambda _: None).state for candidate in (span.candidates[0], span.candidates[-1])]
    if ends != [State.GOOD, State.BAD]:
        return None
    try:
        return one_package.narrow(span, case)
    except NoAnswer:
        return None


def _between(
    work: BisectContext, change: PackageChange, held: EnvironmentContents, after: Lock
) -> one_package.Span | None:
    """The releases of an upgraded package; None where it was added, removed, or comes from elsewhere than an index."""
    name, ends = change.name, (held.lock.version(change.name) or "", after.version(change.name) or "")
    if any(f"{name}=={end}" != line for end, line in zip(ends, (change.before, change.after), strict=True)):
        return None
    try:
        releases = one_package.between(work, name, *ends)
    except IndexProblem as error:
        work.progress.say(f"the release of {name} cannot be told: {error}")
        return None
    return one_package.span(work, releases, held, {ends[0]: held.lock, ends[1]: after})


def _wishes(work: BisectContext, lock: Lock) -> Wishes:
    return requirements.of(metadata.distributions(path=[str(work.environments.build(lock).packages)]))


def _versions(lock: Lock) -> dict[str, str]:
    return {name: lock.version(name) or "" for name in lock.lines}
