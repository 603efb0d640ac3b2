"""Select the packages of environments: what the tests need, by what they say or by what a run here imports."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.environments import HARNESS, requirements
from pytest_rlregress.commands.trials import pytest_run
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.failure_comparison import describe, is_failing
from pytest_rlregress.commands.trials.progress import join_some
from pytest_rlregress.commands.trials.trial import Trial, TrialRun
from pytest_rlregress.stack import COMPONENTS, distributions, locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util import files
from pytest_rlregress.util.text import plural


@dataclass(frozen=True)
class Needs:
    """What tests need of this environment.

    Attributes:
        packages: By normalised name; None: all of this environment.
        declared: Whether the tests say so themselves; else it is what they import.
    """

    packages: frozenset[str] | None = None
    declared: bool = False


@dataclass(frozen=True)
class EnvironmentContents:
    """The packages that are held fixed.

    Attributes:
        lock: Its packages.
        requires: What they require of each other.
        left_out: The packages of this environment that are not part of it, because the tests do not need them.
        needs: What the tests need.
    """

    lock: Lock
    requires: requirements.Requirements
    left_out: tuple[str, ...] = ()
    needs: Needs = Needs()


def select_contents(package: str, needs: Needs, editable: Sequence[Path] = ()) -> EnvironmentContents:
    """Select this environment, or the part of it that the tests need, with what that requires.

    Args:
        package: The package under bisect, which belongs to it.
        needs: What the tests need.
        editable: Folders of projects that are installed editable, whatever is installed of them here.
    """
    lock, requires = add_projects(locks.installed(), editable), requirements.read_requirements()
    if needs.packages is None or not _editables(lock) <= requires.keys():  # what a new project needs is not known
        return EnvironmentContents(lock, requires)
    roots = {canonicalize_name(package), *_own_requirements(), *needs.packages, *_editables(lock)}
    kept = requirements.find_dependencies(roots, requires)
    left_out = tuple(sorted(name for name in lock.lines if name not in kept))
    held = lock.having(dict.fromkeys(left_out))
    kept_requires = {name: some for name, some in requires.items() if name in held.lines}
    return EnvironmentContents(held, kept_requires, left_out, needs)


def complete_lock(lock: Lock, editable: Sequence[Path] = ()) -> Lock:
    """Add to a lock that someone else wrote this harness, what it needs and the lock lacks, and these projects."""
    here = locks.installed()
    missing = requirements.find_dependencies({HARNESS}, requirements.read_requirements()) - {
        *lock.lines,
        HARNESS,
    }
    added = {name: here.lines[name] for name in missing if name in here.lines}
    return add_projects(lock.having({**added, HARNESS: here.lines[HARNESS]}), editable)


def add_projects(lock: Lock, editable: Sequence[Path]) -> Lock:
    """Add projects to a lock, installed editable.

    Raises:
        LockError: A folder holds no project.
    """
    return lock.having({locks.project_name(folder): f"-e {folder.resolve()}" for folder in editable})


def list_distributions(components: Iterable[str]) -> set[str]:
    """List the packages that provide some components of the stack."""
    return {name for component in components if component in COMPONENTS for name in COMPONENTS[component].distributions}


def find_providers(files: Collection[str]) -> set[str]:
    """Find the packages of this environment that installed some files, by normalised name.

    What every environment holds, the harness and the pytest plugins with their requirements, is not among them. By
    files and not by modules: several packages have a module ``google`` or ``tests``, as the user's project may.
    """
    found: set[str] = {
        canonicalize_name(distribution.metadata["Name"] or "")
        for distribution in distributions()
        if any(str(distribution.locate_file(file)) in files for file in _list_modules(distribution))
    }
    return found - requirements.find_dependencies(_own_requirements(), requirements.read_requirements())


def _list_modules(distribution: metadata.Distribution) -> list[str]:
    """List the files that may be imported; the package folders where it is not known which are there."""
    if distribution.files is None:  # a distribution's packager took the list away
        tops = (distribution.read_text("top_level.txt") or "").split()
        return [file for top in tops for file in (f"{top}/__init__.py", f"{top}.py")]
    return [str(file) for file in distribution.files if file.suffix in (".py", ".so")]


def _own_requirements() -> set[str]:
    """Return the harness and the pytest plugins beside it: the user's pytest configuration may name those."""
    plugins = (point.dist for point in metadata.entry_points(group="pytest11"))
    return {HARNESS} | {canonicalize_name(plugin.name) for plugin in plugins if plugin is not None}


def _editables(lock: Lock) -> set[str]:
    """Return the user's own projects: tests need them without saying so."""
    return {name for name, line in lock.lines.items() if line.startswith("-e ")}


_INSTALLERS = {"conda", "pip", "uv"}  # a message tells how to install what is missing
_MISSING = ("ImportError", "ModuleNotFoundError", "PackageNotFoundError")


class LacksPackages(Exception):
    """Tests missed packages at an end that are installed here: the message names them."""

    def __init__(self, packages: Iterable[str]) -> None:
        super().__init__(", ".join(packages))


def find_needs(context: TrialContext) -> Needs:
    """Find what the tests need: what they say, else the packages that a run of them here imports.

    What a run imported is kept, so that a bisect that is gone on with holds the same environments.
    """
    if context.options.all_packages:
        return Needs()
    kept, progress = _kept(context), context.progress
    if kept.exists() and not context.options.fresh:
        return Needs(frozenset(json.loads(kept.read_text(encoding="utf-8"))))
    run = _run_here(context)
    if run.needed is not None:
        return Needs(frozenset(list_distributions(run.needed)), declared=True)
    if run.trouble:
        progress.say(f"what the test needs could not be found out: {run.trouble}. All of this environment is held.")
        return Needs()
    found = find_providers(frozenset(run.imported))
    stack = list_distributions(COMPONENTS)
    named = join_some(sorted(found, key=lambda name: (name not in stack, name)))
    outcomes = join_some([*dict.fromkeys(map(describe, run.observations.values()))])
    progress.say(
        f"finding out what the test needs: {plural(len(found), 'distribution')}: {named} "
        f"(imported in a run here: {outcomes})"
    )
    _keep(context, found)
    return Needs(frozenset(found))


def _run_here(context: TrialContext) -> TrialRun:
    """Run the tests in this environment, with their imports recorded; those that say what they need are not run."""
    request, progress = replace(context.request, finds_needs=True), context.progress
    progress.set_activity("finding out what the test needs")
    return pytest_run.run_tests(Path(sys.executable), request, timeout=context.options.timeout, say=progress.say)


def check_nothing_lacks(context: TrialContext, held: EnvironmentContents, ends: Iterable[Trial]) -> None:
    """Check that no test failed at an end for want of what is installed here but was not found to be needed.

    A test that fails here before it has imported all that it needs goes further at the good end.

    Raises:
        LacksPackages: One did. What it lacked is kept as needed, for those who ask again.
    """
    lacking = [] if held.needs.declared else find_lacking(ends, held.left_out)
    if lacking:
        _keep(context, {*(held.needs.packages or ()), *lacking})
        raise LacksPackages(lacking)


def find_lacking(trials: Iterable[Trial], left_out: Collection[str]) -> list[str]:
    """Find the packages that tests missed in some trials, of those that were left out there."""
    modules = metadata.packages_distributions()
    found = set()
    for run in (run for trial in trials for run in trial.runs):
        for seen in filter(is_failing, run.observations.values()):
            if any(name.rpartition(".")[2] in _MISSING for name in seen.outcome.exceptions):
                for word in re.findall(r"[A-Za-z_][\w.-]*\w", seen.outcome.message):
                    names = (word, *modules.get(word.partition(".")[0], ()))
                    found |= {canonicalize_name(name) for name in names} & set(left_out)
    return sorted(found - _INSTALLERS)


def _keep(context: TrialContext, packages: Iterable[str]) -> None:
    kept = _kept(context)
    kept.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(kept, json.dumps(sorted(packages)))


def _kept(context: TrialContext) -> Path:
    key = json.dumps([context.test_key, locks.installed().digest, sys.prefix], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder: Path = context.options.cache_dir / "needs"
    return folder / f"{name}.json"
