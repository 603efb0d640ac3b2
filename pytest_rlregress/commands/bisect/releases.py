"""Bisect the releases of one package; with what every kind has: what environments hold, and how its answer is built."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from pytest_rlregress.commands.bisect import follow
from pytest_rlregress.commands.bisect.answer import Answer, ChangedSet, Culprit, Untested
from pytest_rlregress.commands.bisect.changes import list_changes
from pytest_rlregress.commands.bisect.follow import FollowedTest, NoAnswer, OrderedCandidates
from pytest_rlregress.environments import HARNESS, RequestError
from pytest_rlregress.environments.environment import Environment
from pytest_rlregress.failures.observations import describe, list_documented
from pytest_rlregress.stack import COMPONENTS, distributions, locks, requirements
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.stack.requirements import Requirements
from pytest_rlregress.trials import pytest_run
from pytest_rlregress.trials.context import TrialContext, refuse_shadowed
from pytest_rlregress.trials.pytest_run import TrialRequest, TrialRun
from pytest_rlregress.trials.trial import Candidate, RunContext, Trial
from pytest_rlregress.util.text import join_some, plural


def bisect_releases(context: TrialContext) -> Answer:
    """Find which release of a package, between two, made the test fail.

    Raises:
        RequestError: An end is not on the index, or that cannot be asked.
    """
    options, package = context.options, context.options.words[0]
    refuse_shadowed([package])
    held = select_contents(package, find_needs(context))
    here = _make_release(context, held, package, held.lock.version(package) or "", held.lock)
    among = find_releases(context, held, package, (options.good, options.bad), {here.name: here})
    ends = good, bad = among.candidates[0], among.candidates[-1]

    def find(followed: FollowedTest) -> Found:
        culprit = find_first_bad_release(context, among, followed)
        context.progress.set_activity("reading what moved in the release")
        culprit = replace(culprit, changes=list_changes(culprit, options.cache_dir, options.no_network))
        return Found((culprit,), build_command(context, good=culprit.last_good.label, bad=culprit.first_bad.label))

    key = {"package": package, "good": good.label, "bad": bad.label, "held": held.lock.digest}
    return find_answer(context, held, ends, {**key, "pre": options.pre, "deps": not options.no_deps}, find)


def find_releases(
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
        found = context.environments.releases.list_between(package, *ends, context.options.pre)
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


def find_first_bad_release(context: TrialContext, among: OrderedCandidates, followed: FollowedTest) -> Culprit:
    """Find where the test flips, and which releases there could not be candidates; both ends were tried.

    Raises:
        NoAnswer: A good release comes after a bad one.
    """
    culprit = follow.find_first_bad(among, followed)
    versions = [one.name for one in among.candidates]
    flip = slice(versions.index(culprit.last_good.label), versions.index(culprit.first_bad.label) + 1)
    left_out = context.environments.releases.list_left_out(among.name, versions[flip], context.options.pre)
    unusable = (Untested(*one) for one in left_out if one[1] != "yanked")
    yanked = (Untested(*one) for one in left_out if one[1] == "yanked")
    return replace(culprit, between=(*culprit.between, *unusable), skipped=(*culprit.skipped, *yanked))


# -- what environments hold --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """The packages of this environment that tests need."""

    packages: frozenset[str] | None = None  # by normalised name; None: all of this environment
    declared: bool = False  # whether the tests say so themselves; else it is what they import


@dataclass(frozen=True)
class EnvironmentContents:
    """The packages that are held fixed."""

    lock: Lock
    requires: Requirements  # of each other
    left_out: tuple[str, ...] = ()  # the packages of this environment that the tests do not need
    needs: Needs = Needs()


def select_contents(package: str, needs: Needs) -> EnvironmentContents:
    """Select this environment, or the part of it that the tests need, with what that requires.

    The package under bisect belongs to it, and the user's editable projects.
    """
    lock, requires = locks.installed(), requirements.read_requirements()
    if needs.packages is None:
        return EnvironmentContents(lock, requires)
    editable = {name for name, line in lock.lines.items() if line.startswith("-e ")}
    roots = {canonicalize_name(package), *_list_own(), *needs.packages, *editable}
    kept = requirements.find_dependencies(roots, requires)
    left_out = tuple(sorted(name for name in lock.lines if name not in kept))
    held = lock.having(dict.fromkeys(left_out))
    kept_requires = {name: some for name, some in requires.items() if name in held.lines}
    return EnvironmentContents(held, kept_requires, left_out, needs)


def list_distributions(components: Iterable[str]) -> set[str]:
    """List the packages that provide some components of the stack."""
    return {name for component in components if component in COMPONENTS for name in COMPONENTS[component].distributions}


def find_providers(files: Collection[str]) -> set[str]:
    """Find the packages of this environment that installed some files, but those that every environment holds.

    By files and not by modules: several packages have a module ``google`` or ``tests``, as the user's project may.
    """
    found: set[str] = set()
    for distribution in distributions():
        modules = (file for file in distribution.files or () if file.suffix in (".py", ".so"))
        if any(str(distribution.locate_file(file)) in files for file in modules):
            found.add(canonicalize_name(distribution.metadata["Name"] or ""))
    return found - requirements.find_dependencies(_list_own(), requirements.read_requirements())


def _list_own() -> set[str]:
    """List the harness and the pytest plugins beside it: the user's pytest configuration may name those."""
    plugins = (point.dist for point in metadata.entry_points(group="pytest11"))
    return {HARNESS} | {canonicalize_name(plugin.name) for plugin in plugins if plugin is not None}


def find_needs(context: TrialContext) -> Needs:
    """Find what the tests need: what they say, else the packages that a run of them here imports.

    That run is kept, so that a bisect that is gone on with holds the same environments.
    """
    options, progress = context.options, context.progress
    if options.all_packages:
        return Needs()
    # With the ends, so that another bisect of the same tests may run at the same time.
    ends = [*options.words, options.good, options.bad, options.revisions]
    with context.open_trials({"here": locks.installed().digest, "prefix": sys.prefix, "ends": ends}) as kept:
        known = kept.trials.get("here")
        run = known.runs[0] if known else _run_here(context)
        if known is None and not run.trouble:
            kept.add(Trial("here", runs=(run,)))
    if run.needed is not None:
        return Needs(frozenset(list_distributions(run.needed)), declared=True)
    if run.trouble:
        progress.say(f"what the test needs could not be found out: {run.trouble}. All of this environment is held.")
        return Needs()
    found = find_providers(frozenset(run.imported))
    if known is None:
        stack = list_distributions(COMPONENTS)
        named = join_some(sorted(found, key=lambda name: (name not in stack, name)))
        outcomes = join_some([*dict.fromkeys(map(describe, run.observations.values()))])
        progress.say(
            f"finding out what the test needs: {plural(len(found), 'distribution')}: {named} "
            f"(imported in a run here: {outcomes})"
        )
    return Needs(frozenset(found))


def _run_here(context: TrialContext) -> TrialRun:
    """Run the tests in this environment, with their imports recorded; those that say what they need are not run."""
    request, python = replace(context.request, finds_needs=True), Path(sys.executable)
    context.progress.set_activity("finding out what the test needs")
    return pytest_run.run_tests(python, request, timeout=context.options.timeout, say=context.progress.say)


# -- the answer -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Where the test flips."""

    culprits: tuple[Culprit, ...]
    command: tuple[str, ...]  # what shows it again
    changed: ChangedSet | None = None  # for two locks


def find_answer(
    context: TrialContext,
    held: EnvironmentContents,
    ends: tuple[Candidate, Candidate],
    key: Mapping[str, Any],
    find: Callable[[FollowedTest], Found],
    build: Callable[[Lock], Environment] | None = None,
    request: TrialRequest | None = None,
) -> Answer:
    """Prove both ends, find where between them the test flips, and build the answer.

    Args:
        context: Of this bisect.
        held: What is held fixed.
        ends: The good end and the bad end.
        key: As of ``context.runner``, and so are build and request.
        find: Finds where the test flips, or raises NoAnswer.
        build: Builds the environments.
        request: The tests.
    """
    with context.runner(key, build, request) as runner:
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
            seconds=runner.seconds,
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
