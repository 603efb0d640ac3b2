"""Bisect the releases of one package, or the upgrades between two locks: the ends, the search, the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import Version

from pytest_rlregress.commands.bisect import follow
from pytest_rlregress.commands.bisect.answer import Answer, ChangedSet, Culprit, Untested
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer, OrderedCandidates
from pytest_rlregress.commands.bisect.needs import (
    EnvironmentContents,
    add_harness,
    find_needs,
    list_distributions,
    select_contents,
)
from pytest_rlregress.commands.environments import RequestError, indexes, requirements
from pytest_rlregress.commands.environments.requirements import Requirements
from pytest_rlregress.commands.trials import search
from pytest_rlregress.commands.trials.context import TrialContext, refuse_shadowed
from pytest_rlregress.commands.trials.document import RunContext
from pytest_rlregress.commands.trials.failure_comparison import list_documented
from pytest_rlregress.commands.trials.pytest_run import TrialRequest
from pytest_rlregress.commands.trials.search import MinimalSet, State, Units
from pytest_rlregress.commands.trials.trial import Builder, Candidate, LockChanges, Trial, Upgrades, group_upgrades
from pytest_rlregress.records import reader
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util.text import plural

Ends = tuple[Candidate, Candidate]


def bisect_releases(context: TrialContext) -> Answer:
    """Find which release of a package, between two, made the test fail.

    Raises:
        RequestError: An end is not on the index, or that cannot be asked.
    """
    options, package = context.options, context.options.words[0]
    refuse_shadowed([package])
    held = select_contents(package, find_needs(context))
    here = _make_release(context, held, package, held.lock.version(package) or "", held.lock)
    among = _find_releases(context, held, package, (options.good, options.bad), {here.name: here})
    ends = good, bad = among.candidates[0], among.candidates[-1]

    def find(followed: FollowedTest) -> Found:
        culprit = _find_first_bad_release(context, among, followed)
        return Found((culprit,), build_command(context, good=culprit.last_good.label, bad=culprit.first_bad.label))

    key = {"package": package, "good": good.label, "bad": bad.label, "held": held.lock.digest}
    return find_answer(context, held, ends, {**key, "pre": options.pre, "deps": not options.no_deps}, find)


def _find_releases(
    context: TrialContext,
    held: EnvironmentContents,
    package: str,
    ends: tuple[str, str],
    known: Mapping[str, Candidate],
) -> OrderedCandidates:
    """Find the releases that the index has from one version of a package to another.

    ``known`` are the candidates of some versions.

    Raises:
        RequestError: An end is not there, or cannot be installed here; or the index cannot be asked.
    """
    try:
        found = indexes.list_candidates(context.environments.find_release, package, *ends, context.options.pre)
    except RequestError as error:
        raise RequestError(f"{package}: {error}") from None
    releases = (
        replace(known.get(one.version) or _make_release(context, held, package, one.version), day=one.date)
        for one in found
    )
    return OrderedCandidates(package, tuple(releases), Version(found[0].version) > Version(found[-1].version))


def _make_release(
    context: TrialContext, held: EnvironmentContents, package: str, version: str, lock: Lock | None = None
) -> Candidate:
    """Make the candidate of a release; its lock is resolved when it is tried, unless it is given."""

    def resolve() -> Lock:
        exact = context.options.no_deps
        return lock or context.environments.resolver.resolve(held.lock, {package: version}, held.requires, exact=exact)

    return Candidate(f"{package} {version}", resolve, held.lock, frozenset({package}), version)


def _find_first_bad_release(context: TrialContext, among: OrderedCandidates, followed: FollowedTest) -> Culprit:
    """Find where the test flips, and which releases there could not be candidates; both ends were tried.

    Raises:
        NoAnswer: A good release comes after a bad one.
    """
    culprit = follow.find_first_bad(among, followed)
    versions = [one.name for one in among.candidates]
    flip = slice(versions.index(culprit.last_good.label), versions.index(culprit.first_bad.label) + 1)
    left_out = indexes.list_left_out(context.environments.find_release, among.name, versions[flip], context.options.pre)
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
    good, bad = (add_harness(read(path)) for path in paths)
    if good == bad:
        raise RequestError(f"{paths[0]} and {paths[1]} hold the same packages: there is nothing to bisect")
    changed = LockChanges(good, bad, ("the good lock", "the bad lock"))
    refuse_shadowed(changed.by_name)
    context.progress.say(f"{len(changed.by_name)} packages differ between {paths[0]} and {paths[1]}")

    def find(followed: FollowedTest) -> Found:
        built = (context.environments.build(lock).packages for lock in (good, bad))
        before, after = (requirements.read_requirements(metadata.distributions(path=[str(one)])) for one in built)
        upgrades = group_upgrades(changed, (before, after))
        found = find_minimal_set(upgrades, followed)
        alone = [next(iter(units)) for units in found.culprits if len(units) == 1]
        needed = upgrades.names(frozenset().union(*found.culprits))
        culprits = (_find_release(context, upgrades, (before, after), followed, unit, needed) for unit in alone)
        return Found(tuple(filter(None, culprits)), build_command(context), _make_changed_set(upgrades, found))

    ends = changed.candidate(()), changed.candidate(changed.by_name)
    held = EnvironmentContents(good.having(dict.fromkeys(changed.by_name)), {})
    return find_answer(context, held, ends, {"good": good.digest, "bad": bad.digest}, find)


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
        names = sorted(one for unit in units for one in upgrades.units.members[unit])
        return tuple(str(upgrades.locks.by_name[name]) for name in names)

    culprits = frozenset[str]().union(*found.culprits)
    needed = frozenset(need for unit in culprits for need in upgrades.units.needs[unit])
    return ChangedSet(
        len(upgrades.locks.by_name),
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
    unit: str,
    needed: list[str],
) -> Culprit | None:
    """Find the release of an upgrade, with the others that are needed in place; None where none can be tried."""
    others = [name for name in needed if name not in upgrades.units.members[unit]]
    ends = tuple(map(upgrades.locks.candidate, (others, needed)))
    before, after = (one.lock() for one in ends)
    held = EnvironmentContents(
        before, {**requires[0], **{name: requires[1][name] for name in others if name in requires[1]}}
    )
    found = []
    for name in upgrades.units.members[unit]:
        versions = before.version(name) or "", after.version(name) or ""
        if any(f"{name}=={one}" != lock.lines.get(name) for one, lock in zip(versions, (before, after), strict=True)):
            continue  # it was added, removed, or is not from an index
        known = {version: replace(end, name=version) for version, end in zip(versions, ends, strict=True)}
        try:
            found.append(_find_releases(context, held, name, versions, known))
        except RequestError as error:
            context.progress.say(f"the releases of {name} cannot be listed: {error}")
    # Of packages that can only be moved together one of the stack's components leads, and the others follow.
    stack = list_distributions(COMPONENTS)
    among = max(found, key=lambda one: (one.name in stack, len(one.candidates)), default=None)
    if among is None or [followed.try_(among.candidates[at]).state for at in (0, -1)] != [State.GOOD, State.BAD]:
        return None
    try:
        return _find_first_bad_release(context, among, followed)
    except NoAnswer:
        return None


@dataclass(frozen=True)
class Found:
    """Where the test flips."""

    culprits: tuple[Culprit, ...]
    command: tuple[str, ...]  # what shows it again
    changed: ChangedSet | None = None  # for two locks


def find_answer(
    context: TrialContext,
    held: EnvironmentContents,
    ends: Ends,
    key: Mapping[str, Any],
    find: Callable[[FollowedTest], Found],
    builder: Builder | None = None,
    request: TrialRequest | None = None,
) -> Answer:
    """Prove both ends, find where between them the test flips, and build the answer.

    Args:
        context: Of this bisect.
        held: What is held fixed.
        ends: The good end and the bad end.
        key: As of ``context.runner``, and so are builder and request.
        find: Finds where the test flips, or raises NoAnswer.
        builder: Builds the environments.
        request: The tests.
    """
    with context.runner(key, builder, request) as runner:
        trials, followed, why = runner.trials, None, None
        try:
            followed = follow.follow_test(*ends, runner)
            found = find(followed)
        except NoAnswer as error:
            found, why = Found((), build_command(context)), error.why
        if followed is None:
            test, failure_id = "", next(iter(context.request.failures), "")
            hardware = next((run.hardware for trial in trials.values() for run in trial.runs), "")
            good, bad = (follow.describe_end(one, runner.find_trial(one)) for one in ends)
        else:
            test, failure_id = followed.test, min(list_documented(followed.bad), default="")
            hardware = followed.hardware
            good, bad = (followed.describe(one, one.label) for one in ends)
        if why is not None:
            swapped = _swap_ends(context) if why.kind == "swapped" else ()
            why = replace(why, command=swapped, advice=_advise(context, held, bool(good.conflict or bad.conflict)))
        asked = " ".join((*context.request.failures, *context.request.arguments, *context.request.shipped))
        failure = context.failures.get(failure_id)
        return Answer(
            test=asked if test in ("", asked) else f"{asked}: {test}",
            documented={one: getattr(failure, one) for one in ("id", "title", "cause", "remedy")} if failure else {},
            ends=(good, bad),
            run_context=_describe_run(hardware, held, trials.values(), found.culprits),
            tried=tuple(map(followed.summarize if followed else follow.summarize_end, trials.values())),
            seconds=runner.seconds_before + context.progress.elapsed,
            command=found.command,
            culprits=found.culprits,
            changed=found.changed,
            not_found=why,
            also_flip=followed.others if followed and why is None else (),
        )


def _advise(context: TrialContext, held: EnvironmentContents, conflict: bool) -> str:
    """Name the option that may let the flip be found; "" for none."""
    if conflict and context.options.good:
        return f"--no-deps moves nothing but {context.options.words[0]}, whatever it and the others require."
    if not held.left_out:
        return ""
    return (
        f"--all-packages holds all of this environment: {plural(len(held.left_out), 'package')} more. If the tests "
        "lack one of them, import it there, or name it in their marker needs(…)."
    )


def build_command(context: TrialContext, **ends: object) -> tuple[str, ...]:
    """Build the command as it was typed, between other ends."""
    words = ["rlregress", *context.options.arguments]
    for name, end in ends.items():
        flag = f"--{name.replace('_', '-')}"
        for at, word in enumerate(words):
            if word == flag:
                words[at + 1] = str(end)
            elif word.startswith(f"{flag}="):
                words[at] = f"{flag}={end}"
    return tuple(words)


def _swap_ends(context: TrialContext) -> tuple[str, ...]:
    """Build the command with the ends exchanged."""
    given, pairs = vars(context.options), (("good", "bad"), ("good_lock", "bad_lock"), ("from_record", "to_record"))
    swapped = {flag: given[other] for pair in pairs for flag, other in (pair, pair[::-1]) if given[other]}
    if given["revisions"]:
        swapped["revisions"] = "..".join(reversed(given["revisions"].split("..")))
    return build_command(context, **swapped)


def _describe_run(
    hardware: str, held: EnvironmentContents, trials: Collection[Trial], culprits: Collection[Culprit]
) -> RunContext:
    """Describe where it was tried: the components of the stack that were held fixed, and what was left out and why."""
    stack = list_distributions(COMPONENTS)
    moved = {one.name for one in culprits} | {line.split()[0] for trial in trials for line in trial.moved}
    versions = {name: held.lock.version(name) or "" for name in sorted(stack - moved) if name in held.lock.lines}
    why = "do not say they need" if held.needs.declared else "do not import here"
    among = ", ".join(sorted(stack.intersection(held.left_out)))
    text = f"{len(held.left_out)} packages that the tests {why}{f', among them {among}' if among else ''}"
    return RunContext.here(hardware, versions, (text,) if held.left_out else ())
