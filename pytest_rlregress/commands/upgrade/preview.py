"""Preview an upgrade: build it beside this environment, run the same tests in both, and say what differs."""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

from pytest_rlregress.commands.environments import requirements
from pytest_rlregress.commands.environments.environment import Environment, Environments
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.commands.trials.context import TrialContext, open_context, refuse_shadowed
from pytest_rlregress.commands.trials.progress import Progress, join_some
from pytest_rlregress.commands.trials.runner import TrialRunner
from pytest_rlregress.commands.trials.summaries import RunContext
from pytest_rlregress.commands.trials.trial import RequestError, State
from pytest_rlregress.commands.trials.upgrades import LockChanges, group_upgrades
from pytest_rlregress.commands.upgrade import comparison
from pytest_rlregress.commands.upgrade.answer import UpgradeAnswer
from pytest_rlregress.commands.upgrade.comparison import Effect
from pytest_rlregress.commands.upgrade.plan import UpgradePlan, list_steps_back, make_plan, split_words
from pytest_rlregress.commands.upgrade.tries import Baseline, GrownSet, Tried, grow
from pytest_rlregress.failures.catalogue import CatalogueError
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util.files import write_whole
from pytest_rlregress.util.text import plural
from pytest_rlregress.util.units import format_duration


def preview_upgrade(options: argparse.Namespace, progress: Progress) -> UpgradeAnswer:
    """Preview the upgrade that was asked for.

    Raises:
        RequestError: It cannot be resolved or built, or the tests cannot be run here or with it.
        IndexProblem: A version is not on the index, or that cannot be asked.
        NoSpace: The disk is full.
    """
    packages, tests = split_words(options.words)
    if not packages and not options.all:
        taken = f" ({', '.join(tests)}: not installed here, so taken for tests)" if tests else ""
        raise RequestError(
            f"name what is to be upgraded: PACKAGE==VERSION, PACKAGE for its newest release, or --all{taken}"
        )
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open_context(options, tests, progress) as context:
            plan = make_plan(context, packages)
            return _try_plan(context, plan) if plan.locks.by_name else _build_empty_answer(context, plan)
    except CatalogueError as error:
        raise RequestError(f"{error} Nor is a package of that name installed here.") from None


def _try_plan(context: TrialContext, plan: UpgradePlan) -> UpgradeAnswer:
    options, locks, progress = context.options, plan.locks, context.progress
    asked = [name for name in locks.by_name if name in plan.asked or options.all]
    refuse_shadowed(locks.by_name)
    moves = [str(one) for one in locks.by_name.values()]
    for one in plan.stays:
        progress.say(one)
    progress.say(f"{plural(len(moves), 'package')} would move: {join_some(moves)}")
    progress.set_activity("building the environment with the upgrade")
    try:
        built = context.environments.build(locks.after)
    except Unbuildable as error:
        raise RequestError(f"the environment with the upgrade cannot be built: {error}") from None
    found = "found" if built.reused else "built"
    progress.say(f"environment {found} after {format_duration(progress.elapsed)}; running the tests here, then in it")
    builder = _HereAndBeside(context.environments, locks)
    with context.runner({"before": locks.before.digest, "after": locks.after.digest}, builder) as runner:
        baseline = Baseline(locks.candidate(()), runner, progress)
        whole = baseline.compare(locks.candidate(locks.by_name))
        grown = None
        if options.stepwise and (whole.state is not State.GOOD or list_steps_back(locks.by_name.values())):
            after = requirements.read_requirements(metadata.distributions(path=[str(built.packages)]))
            grown = grow(group_upgrades(locks, (plan.requires, after)), asked, baseline)
        elif whole.state is State.UNKNOWN:
            raise RequestError(f"the tests cannot be run with the upgrade: {whole.reason}")
        return _build_answer(context, plan, asked, baseline, whole, grown, runner)


class _HereAndBeside:
    """Builds environments beside the one that this command runs in, which is taken as it is."""

    def __init__(self, environments: Environments, locks: LockChanges) -> None:
        self._environments, self._locks = environments, locks

    def build(self, lock: Lock) -> Environment:
        """The environment of a lock: this one, or one that is built."""
        if lock == self._locks.before:
            return Environment(Path(sys.prefix), Path(sys.executable), Path(sysconfig.get_path("purelib")), True)
        return self._environments.build(lock)


# -- the answer -------------------------------------------------------------------------------------------------------


def _build_empty_answer(context: TrialContext, plan: UpgradePlan) -> UpgradeAnswer:
    return UpgradeAnswer(asked=_describe_request(context), command=_command(context), stays=plan.stays)


def _build_answer(
    context: TrialContext,
    plan: UpgradePlan,
    asked: Collection[str],
    baseline: Baseline,
    whole: Tried,
    grown: GrownSet | None,
    runner: TrialRunner,
) -> UpgradeAnswer:
    changes = plan.locks.by_name
    back = list_steps_back(changes.values())
    output, safe = context.options.output, grown.lock if grown is not None else plan.locks.after
    if output and safe != plan.locks.before and (grown is not None or (whole.state is State.GOOD and not back)):
        write_whole(output, safe.text)
    else:
        output = None
    return UpgradeAnswer(
        asked=_describe_request(context),
        command=_command(context),
        asked_for=tuple(str(changes[name]) for name in asked),
        moved_along=tuple(str(one) for name, one in changes.items() if name not in asked),
        safe=whole.state is State.GOOD and not back,
        back=back,
        instead=plan.instead,
        stays=plan.stays,
        trouble=whole.reason if whole.state is State.UNKNOWN else "",
        changes=comparison.summarize_effects(whole.effects),
        gone=comparison.list_gone(whole.effects),
        unchanged=sum(one.effect is Effect.SAME and comparison.is_driven([one], after=True) for one in whole.effects),
        safe_set=grown.safe_set if grown is not None else None,
        run_context=RunContext.here(baseline.hardware),
        tried=tuple(baseline.rows),
        seconds=runner.seconds_before + context.progress.elapsed,
        output=str(output or ""),
    )


def _describe_request(context: TrialContext) -> str:
    options = context.options
    return " ".join(["--all"] * options.all + options.words)


def _command(context: TrialContext) -> tuple[str, ...]:
    return ("rlregress", *context.options.arguments)
