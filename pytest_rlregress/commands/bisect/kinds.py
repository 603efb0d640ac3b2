"""Bisect the releases of one package, or the upgrades between two locks: which of them, then which release."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from pytest_rlregress.commands.bisect import checkout, follow
from pytest_rlregress.commands.bisect.answer import Answer, ChangedSet, Culprit, Endpoint, tell
from pytest_rlregress.commands.bisect.build_answer import build_command, build_found, build_not_found
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer, OrderedCandidates, follow_test
from pytest_rlregress.commands.bisect.needs import (
    EnvironmentContents,
    LacksPackages,
    check_nothing_lacks,
    complete_lock,
    find_needs,
    list_distributions,
    select_contents,
)
from pytest_rlregress.commands.environments import RequestError, indexes, requirements
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.trials import pytest_run, search
from pytest_rlregress.commands.trials.context import TrialContext, open_context, refuse_shadowed, run_request
from pytest_rlregress.commands.trials.progress import Progress
from pytest_rlregress.commands.trials.runner import Candidate, LockChanges, Upgrades, group_upgrades
from pytest_rlregress.commands.trials.search import MinimalSet, Units
from pytest_rlregress.commands.trials.trial import State, Untested
from pytest_rlregress.records import reader
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock, PackageChange


def run_bisect(options: argparse.Namespace) -> int:
    """Bisect, print the answer and write it; returns the exit code.

    Raises:
        CatalogueError: There is no such failure.
    """
    return run_request(options, lambda progress: tell(_find_answer(options, progress)))


def _find_answer(options: argparse.Namespace, progress: Progress) -> Answer:
    ways = {
        "--good and --bad": (bisect_releases, options.good, options.bad),
        "--good-lock and --bad-lock": (bisect_locks, options.good_lock, options.bad_lock),
        "--from-record and --to-record": (bisect_locks, options.from_record, options.to_record),
        "--revisions and --repo": (checkout.bisect_commits, options.revisions, options.repo),
    }
    chosen = [way for way, (_, *ends) in ways.items() if any(ends)]
    if len(chosen) != 1 or not all(ways[chosen[0]]):
        raise RequestError(f"give two ends, one pair of {', '.join(ways)}. rlregress bisect --help has examples")
    tests = options.words[1:] if options.good else options.words
    if options.good and not options.words:
        raise RequestError("name the package that --good and --bad are releases of: rlregress bisect PACKAGE … TEST")
    if options.from_record and not tests:
        tests = _find_flipped_test(options.from_record, options.to_record)
        progress.say(f"went from good to bad: {tests[0]}")
    if not tests:
        raise RequestError("name the test: a documented failure (rlregress list), a file or a node id")
    while True:
        with open_context(options, tests, progress) as context:
            try:
                return ways[chosen[0]][0](context)
            except LacksPackages as lacking:
                progress.say(f"at an end the test also needs {lacking}, which is installed here: tried again with that")
        options = argparse.Namespace(**{**vars(options), "fresh": False})  # what it needs is kept


def _find_flipped_test(before: Path, after: Path) -> list[str]:
    """Find the one failure or test that went from good to bad between two records."""
    found = list(dict.fromkeys(test.extra.failure or test.name for _, test in reader.flipped(before, after)))
    if not found:
        raise RequestError(f"no test went from good in {before} to bad in {after}: name one")
    if len(found) > 1:
        raise RequestError(f"{len(found)} went from good to bad, name one of them: {', '.join(found)}")
    return found


def bisect_releases(context: TrialContext) -> Answer:
    """Find which release of a package, between two, made the test fail.

    Raises:
        RequestError: An end is not on the index, or that cannot be asked.
        LacksPackages: The tests missed some at an end that are installed here.
    """
    options, package = context.options, context.options.words[0]
    refuse_shadowed([package])
    held = select_contents(package, find_needs(context), options.with_editable)
    installed = held.lock.version(package)
    known = {installed: held.lock} if installed is not None else {}
    found = find_candidates(context, package, options.good, options.bad, held, known)
    good, bad = found.candidates[0], found.candidates[-1]
    key = {"package": package, "good": good.label, "bad": bad.label, "held": held.lock.digest}
    with context.runner({**key, "pre": options.pre, "deps": not options.no_deps}) as runner:
        try:
            followed = follow_test(good, bad, runner, context.progress)
            culprit = find_first_bad_release(context, found, followed)
        except NoAnswer as error:
            check_nothing_lacks(context, held, runner.trials.values())
            return build_not_found(context, error.why, (good, bad), runner, held)
        last, first = culprit.last_good, culprit.first_bad
        return build_found(
            context,
            followed,
            held,
            build_command(context, good=last.label, bad=first.label),
            culprits=[culprit],
            edge=(found.find(last), found.find(first)),
            days=(found.points[0].date, found.points[-1].date),
        )


def find_candidates(
    context: TrialContext, package: str, good: str, bad: str, held: EnvironmentContents, known: Mapping[str, Lock]
) -> OrderedCandidates:
    """Find the releases that the index has from one version of a package to another.

    Args:
        context: Where they are tried.
        package: Its name.
        good: The version of the good end.
        bad: The version of the bad end.
        held: What is held fixed.
        known: The locks of some versions, which need not be resolved.

    Raises:
        RequestError: An end is not there, or cannot be installed here; or the index cannot be asked.
    """
    options = context.options
    try:
        found = indexes.list_candidates(context.environments.find_release, package, good, bad, options.pre)
    except RequestError as error:
        raise RequestError(f"{package}: {error}") from None

    def resolve(version: str) -> Lock:
        lock = known.get(version)
        wanted = {package: version}
        return lock or context.environments.resolve(held.lock, wanted, held.requires, exact=options.no_deps)

    def candidate(version: str) -> Candidate:
        return Candidate(f"{package} {version}", lambda: resolve(version), held.lock, frozenset({package}))

    return OrderedCandidates(
        package,
        tuple(candidate(one.version) for one in found),
        tuple(Endpoint(one.version, one.date) for one in found),
        Version(found[0].version) > Version(found[-1].version),
    )


def find_first_bad_release(context: TrialContext, among: OrderedCandidates, followed: FollowedTest) -> Culprit:
    """Find where the test flips, and which releases there could not be candidates; both ends were tried.

    Raises:
        NoAnswer: A good release comes after a bad one.
    """
    culprit = follow.find_first_bad(among, followed)
    labels = [point.label for point in among.points]
    flip = slice(labels.index(culprit.last_good.label), labels.index(culprit.first_bad.label) + 1)
    left_out = indexes.list_left_out(context.environments.find_release, among.name, labels[flip], context.options.pre)
    unusable = (Untested(*one) for one in left_out if one[1] != "yanked")
    yanked = (Untested(*one) for one in left_out if one[1] == "yanked")
    return replace(culprit, between=(*culprit.between, *unusable), skipped=(*culprit.skipped, *yanked))


def bisect_locks(context: TrialContext) -> Answer:
    """Find which upgrades, of those between two locks, made the test fail, and which release of each.

    Raises:
        LockError: A file holds no complete set of packages.
        RequestError: Both hold the same, or PYTHONPATH has a package that differs.
    """
    options = context.options
    paths = options.good_lock or options.from_record, options.bad_lock or options.to_record
    read = locks.read if options.good_lock else reader.lock
    good, bad = (complete_lock(read(path), options.with_editable) for path in paths)
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
            return build_not_found(context, error.why, ends, runner, EnvironmentContents(good, {}))
        requires = _read_requirements(context, good), _read_requirements(context, bad)
        upgrades = group_upgrades(changed, requires)
        found = find_minimal_set(upgrades, followed)
        needed = upgrades.names(frozenset().union(*found.culprits))
        alone = [next(iter(units)) for units in found.culprits if len(units) == 1]
        culprits = [_find_release(context, upgrades, requires, followed, unit, needed) for unit in alone]
        return build_found(
            context,
            followed,
            EnvironmentContents(good.having(dict.fromkeys(changed.by_name)), {}),
            build_command(context),
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
    needed_packages = list_distributions(pytest_run.list_declared_needs(context.request) or ())
    releases = max(
        filter(None, found), key=lambda one: (one.name in needed_packages, len(one.candidates)), default=None
    )
    if releases is None:
        return None
    ends = [followed.try_(releases.candidates[at]).state for at in (0, -1)]
    if ends != [State.GOOD, State.BAD]:
        return None
    try:
        return find_first_bad_release(context, releases, followed)
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
        return find_candidates(context, name, *ends, held, {ends[0]: held.lock, ends[1]: after})
    except RequestError as error:
        context.progress.say(f"the releases of {name} cannot be listed: {error}")
        return None


def _read_requirements(context: TrialContext, lock: Lock) -> Requirements:
    return requirements.read_requirements(metadata.distributions(path=[str(context.environments.build(lock).packages)]))
