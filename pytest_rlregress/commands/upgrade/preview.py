"""Preview an upgrade: build it beside this environment, run the same tests in both, and say what differs."""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pytest_rlregress.commands.moved.comparison import tell_upgrade
from pytest_rlregress.commands.upgrade import comparison
from pytest_rlregress.commands.upgrade.answer import LeftOut, SafeSet, UpgradeAnswer
from pytest_rlregress.commands.upgrade.comparison import Effect, VerdictChange
from pytest_rlregress.commands.upgrade.plan import UpgradePlan, list_steps_back, make_plan, parse_version, split_words
from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.environment import Environment
from pytest_rlregress.environments.uv import Unbuildable
from pytest_rlregress.failures.catalogue import CatalogueError
from pytest_rlregress.stack import requirements
from pytest_rlregress.stack.locks import Lock, PackageChange
from pytest_rlregress.trials.context import TrialContext, list_tests, open_context, refuse_shadowed
from pytest_rlregress.trials.search import NONE, LargestSet, State, Units, next_growth
from pytest_rlregress.trials.trial import Candidate, Progress, RunContext, Trial, TrialRunner, TrialSummary
from pytest_rlregress.trials.upgrades import Upgrades, UpgradeUnits
from pytest_rlregress.util.files import write_whole
from pytest_rlregress.util.text import join_some, plural
from pytest_rlregress.util.units import format_duration


def preview_upgrade(options: argparse.Namespace, progress: Progress) -> UpgradeAnswer:
    """Preview the upgrade that was asked for.

    Raises:
        RequestError: It cannot be resolved or built, the tests cannot be run here or with it, a version is not on the
            index, the index cannot be asked, or the disk is full.
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
        with open_context(options, list_tests(options, tests), progress) as context:
            plan = make_plan(context, packages)
            if plan.upgrades.by_name:
                return _try_plan(context, plan)
            return UpgradeAnswer(_describe_request(options), ("rlregress", *options.arguments), stays=plan.stays)
    except CatalogueError as error:
        raise RequestError(f"{error} Nor is a package of that name installed here.") from None


def _try_plan(context: TrialContext, plan: UpgradePlan) -> UpgradeAnswer:
    options, upgrades, progress = context.options, plan.upgrades, context.progress
    changes = upgrades.by_name
    asked = [name for name in changes if name in plan.asked or options.all]
    back = list_steps_back(changes.values())
    refuse_shadowed(changes)
    for one in plan.stays:
        progress.say(one)
    progress.say(f"{plural(len(changes), 'package')} would move: {join_some([str(one) for one in changes.values()])}")
    moved = _tell_moved(context, changes.values())
    progress.set_activity("building the environment with the upgrade")
    try:
        built = context.environments.build(upgrades.after)
    except Unbuildable as error:
        raise RequestError(f"the environment with the upgrade cannot be built: {error}") from None
    found = "found" if built.reused else "built"
    progress.say(f"environment {found} after {format_duration(progress.elapsed)}; running the tests here, then in it")

    def build(lock: Lock) -> Environment:
        """Build an environment, but for the one that this command runs in, which is taken as it is."""
        if lock == upgrades.before:
            return Environment(Path(sys.prefix), Path(sys.executable), Path(sysconfig.get_path("purelib")), True)
        return context.environments.build(lock)

    with context.runner({"before": upgrades.before.digest, "after": upgrades.after.digest}, build) as runner:
        baseline = Baseline(upgrades.candidate(()), runner)
        whole = baseline.compare(upgrades.candidate(changes))
        safe_set, safe = None, upgrades.after if whole.state is State.GOOD and not back else upgrades.before
        if options.stepwise and (back or whole.state is not State.GOOD):
            after = requirements.read_requirements(metadata.distributions(path=[str(built.packages)]))
            safe_set, safe = grow(upgrades, upgrades.group((plan.requires, after)), asked, baseline)
        elif whole.state is State.UNKNOWN:
            raise RequestError(f"the tests cannot be run with the upgrade: {whole.reason}")
        output = options.output if safe != upgrades.before else None
        if output:
            write_whole(output, safe.text)
        return UpgradeAnswer(
            asked=_describe_request(options),
            command=("rlregress", *options.arguments),
            moved=moved,
            asked_for=tuple(str(changes[name]) for name in asked),
            moved_along=tuple(str(one) for name, one in changes.items() if name not in asked),
            safe=whole.state is State.GOOD and not back and not comparison.is_doubtful(whole.effects),
            back=back,
            instead=plan.instead,
            stays=plan.stays,
            trouble=whole.reason if whole.state is State.UNKNOWN else "",
            changes=comparison.summarize_effects(whole.effects),
            gone=comparison.list_gone(whole.effects),
            unchanged=sum(
                one.effect is Effect.SAME and comparison.is_driven([one], after=True) for one in whole.effects
            ),
            safe_set=safe_set,
            run_context=RunContext.here(baseline.hardware),
            tried=tuple(map(baseline.summarize, runner.trials.values())),
            seconds=runner.seconds,
            output=str(output or ""),
        )


def _tell_moved(context: TrialContext, changes: Iterable[PackageChange]) -> tuple[str, ...]:
    """Tell what the upgrade changes for runs of the installed trainers, which tests may not see."""
    options, found = context.options, []
    context.progress.set_activity("reading what moved between the releases")
    for one in changes:
        before, after = parse_version(one.before), parse_version(one.after)
        if before is not None and after is not None and before.public != after.public:
            found += tell_upgrade(one.name, before.public, after.public, options.cache_dir, options.no_network)
    for line in found:
        context.progress.say(line)
    return tuple(found)


def _describe_request(options: argparse.Namespace) -> str:
    return " ".join([*(["--all"] if options.all else []), *options.words])


@dataclass(frozen=True)
class Tried:
    """A set of upgrades that was tried.

    Attributes:
        state: Good where nothing gets worse, bad where something does, else unknown.
        reason: What gets worse, or why it is unknown.
        effects: What it does to each test.
    """

    state: State
    reason: str
    effects: tuple[VerdictChange, ...] = ()


class Baseline:
    """The environment as it is, with which every set of upgrades is compared: its tests are run once.

    Args:
        here: It.
        runner: Where it and the sets are tried.

    Raises:
        RequestError: They cannot be run, or none of them says anything of the stack.
    """

    def __init__(self, here: Candidate, runner: TrialRunner) -> None:
        self._runner = runner
        self._trial = runner.try_(here, self._summarize_here)
        if self._trial.why_none:
            raise RequestError(f"the tests cannot be run here: {self._trial.why_none}")
        if not comparison.is_driven(comparison.compare_trials(self._trial, self._trial), after=False):
            raise RequestError("none of the tests can be driven here: there is nothing to compare")
        #: The profile and the devices, in words.
        self.hardware = self._trial.runs[0].hardware

    def _summarize_here(self, trial: Trial) -> TrialSummary:
        return trial.summarize(State.UNKNOWN if trial.why_none else State.GOOD, trial.why_none)

    def compare(self, candidate: Candidate) -> Tried:
        """Try a set of upgrades, once, and compare it with the environment as it is.

        Raises:
            RequestError: The disk is full.
        """
        return self._judge(self._runner.try_(candidate, self.summarize))

    def summarize(self, trial: Trial) -> TrialSummary:
        """Summarize a trial in one line."""
        tried = self._judge(trial)
        return trial.summarize(tried.state, tried.reason)

    def _judge(self, trial: Trial) -> Tried:
        if not trial.runs:
            return Tried(State.UNKNOWN, trial.trouble)
        effects = comparison.compare_trials(self._trial, trial)
        worse = [one for one in comparison.summarize_effects(effects) if one.effect.forbids]
        other = next((run.hardware for run in trial.runs if run.hardware != self.hardware), None)
        if worse and other is None:
            return Tried(State.BAD, "; ".join(map(describe_change, worse)), effects)
        trouble = trial.why_none
        if not trouble and other is not None:
            trouble = f"the hardware changed: {other}, before it was {self.hardware}"
        if not trouble and not comparison.is_driven(effects, after=True):
            trouble = "none of the tests can be driven there"
        return Tried(State.UNKNOWN if trouble else State.GOOD, trouble, effects)


def describe_change(change: VerdictChange) -> str:
    """Describe in a line what an upgrade does to a failure's tests, or to one test."""
    side = f" ({change.side})" if change.side else ""
    reason = f": {change.reason}" if change.reason and change.reason != change.verdict else ""
    return f"{change.name}{side}: {change.before} -> {change.after}{reason}"


def grow(upgrades: Upgrades, units: UpgradeUnits, asked: Collection[str], baseline: Baseline) -> tuple[SafeSet, Lock]:
    """Try sets of upgrades until the largest is found that makes nothing worse; returns it, and the lock with it.

    Args:
        upgrades: What moves.
        units: The same in the smallest units that can be moved.
        asked: The packages that were asked for; all others move only with those that need them.
        baseline: The environment as it is.

    Raises:
        RequestError: The disk is full.
    """
    order = [unit for unit in units.order if not set(asked).isdisjoint(units.members[unit])]
    needs = {unit: units.needs[unit] & set(order) for unit in order}
    tried: dict[Units, Tried] = {}
    while True:
        states = {NONE: State.GOOD, **{subset: one.state for subset, one in tried.items()}}
        step = next_growth(order, needs, states)
        if isinstance(step, LargestSet):
            return _describe(upgrades, units, step, tried)
        back = list_steps_back(upgrades.by_name[name] for name in units.names(step.subset))
        if back:
            tried[step.subset] = Tried(State.BAD, ", ".join(back))
            continue
        tried[step.subset] = baseline.compare(upgrades.candidate(units.names(step.subset)))


def _describe(
    upgrades: Upgrades, units: UpgradeUnits, found: LargestSet, tried: Mapping[Units, Tried]
) -> tuple[SafeSet, Lock]:
    changes = upgrades.by_name

    def describe(unit: str) -> tuple[str, ...]:
        return tuple(str(changes[name]) for name in units.members[unit])

    def explain(because: Units | str) -> str:
        if isinstance(because, str):
            return f"needs {' and '.join(describe(because))}"
        one = tried[because]
        return one.reason if one.state is State.BAD else f"could not be tested: {one.reason}"

    kept = units.names(found.kept)
    left_out = tuple(LeftOut(describe(unit), explain(because)) for unit, because in sorted(found.left_out.items()))
    return SafeSet(tuple(str(changes[name]) for name in kept), left_out), upgrades.apply(kept)
