"""What the tests need of this environment: what they say, or what they import when they are run here once."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.environments.contents import (
    EnvironmentContents,
    Needs,
    find_providers,
    list_distributions,
)
from pytest_rlregress.commands.trials import pytest_run
from pytest_rlregress.commands.trials.context import TrialContext
from pytest_rlregress.commands.trials.failure_comparison import describe, is_failing
from pytest_rlregress.commands.trials.progress import join_some
from pytest_rlregress.commands.trials.trial import Trial, TrialRun
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.util import files
from pytest_rlregress.util.text import plural

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
