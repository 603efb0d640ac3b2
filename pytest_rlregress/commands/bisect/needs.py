"""Select the packages of environments: what the tests need, by what they say or by what a run here imports."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.environments import HARNESS, requirements
from pytest_rlregress.commands.trials import pytest_run
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.document import join_some
from pytest_rlregress.commands.trials.failure_comparison import describe
from pytest_rlregress.commands.trials.pytest_run import TrialRun
from pytest_rlregress.commands.trials.trial import Trial
from pytest_rlregress.stack import COMPONENTS, distributions, locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util.text import plural


@dataclass(frozen=True)
class Needs:
    """The packages of this environment that tests need."""

    packages: frozenset[str] | None = None  # by normalised name; None: all of this environment
    declared: bool = False  # whether the tests say so themselves; else it is what they import


@dataclass(frozen=True)
class EnvironmentContents:
    """The packages that are held fixed."""

    lock: Lock
    requires: requirements.Requirements  # of each other
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


def add_harness(lock: Lock) -> Lock:
    """Add to a lock that someone else wrote this harness, and what it needs and the lock lacks."""
    here = locks.installed().lines
    needed = requirements.find_dependencies({HARNESS}, requirements.read_requirements())
    missing = needed & here.keys() - lock.lines.keys()
    return lock.having({name: here[name] for name in {*missing, HARNESS}})


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
