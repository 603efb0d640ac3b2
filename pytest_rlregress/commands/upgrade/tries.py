"""Try sets of upgrades, compare each with the environment as it is, and find the largest that makes nothing worse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_rlregress.commands.trials.progress import Progress
from pytest_rlregress.commands.trials.runner import Candidate, TrialRunner
from pytest_rlregress.commands.trials.search import NONE, Units
from pytest_rlregress.commands.trials.summaries import TrialSummary, summarize_tests
from pytest_rlregress.commands.trials.trial import RequestError, State, Trial
from pytest_rlregress.commands.trials.upgrades import Upgrades
from pytest_rlregress.commands.upgrade import comparison
from pytest_rlregress.commands.upgrade.answer import LeftOut, SafeSet
from pytest_rlregress.commands.upgrade.comparison import TestEffect, VerdictChange
from pytest_rlregress.commands.upgrade.growth import LargestSet, next_growth
from pytest_rlregress.commands.upgrade.plan import list_steps_back
from pytest_rlregress.stack.locks import Lock


@dataclass(frozen=True)
class Tried:
    """A set of upgrades that was tried.

    Attributes:
        state: Good where nothing gets worse, bad where something does, else unknown.
        reason: What gets worse, or why it is unknown.
        effects: What it does to each test.
        trial: What was tried; None where it was known without.
    """

    state: State
    reason: str
    effects: tuple[TestEffect, ...] = ()
    trial: Trial | None = None


class Baseline:
    """The environment as it is, with which every set of upgrades is compared: its tests are run once.

    Args:
        here: It.
        runner: Where it and the sets are tried.
        progress: Told of every trial.

    Attributes:
        trial: What its tests said.
        rows: A line for every trial, in the order of the trying.

    Raises:
        RequestError: They cannot be run, or none of them says anything of the stack.
    """

    def __init__(self, here: Candidate, runner: TrialRunner, progress: Progress) -> None:
        self._runner, self._progress = runner, progress
        self.rows: list[TrialSummary] = []
        known = runner.find_trial(here) is not None
        self.trial = runner.try_(here)
        trouble = self.trial.why_none
        if trouble:
            raise RequestError(f"the tests cannot be run here: {trouble}")
        if not comparison.is_driven(comparison.compare_trials(self.trial, self.trial), after=False):
            raise RequestError("none of the tests can be driven here: there is nothing to compare")
        self._report(self.trial, State.GOOD, "", known)

    @property
    def hardware(self) -> str:
        """The profile and the devices, in words."""
        return self.trial.runs[0].hardware

    def compare(self, candidate: Candidate) -> Tried:
        """Try a set of upgrades, once, and compare it with the environment as it is.

        Raises:
            NoSpace: The disk is full.
        """
        seen = any(row.label == candidate.label for row in self.rows)
        known = not seen and self._runner.find_trial(candidate) is not None
        trial = self._runner.try_(candidate)
        tried = self._judge(trial)
        if not seen:
            self._report(trial, tried.state, tried.reason, known)
        return tried

    def _judge(self, trial: Trial) -> Tried:
        if not trial.runs:
            return Tried(State.UNKNOWN, trial.trouble, trial=trial)
        effects = comparison.compare_trials(self.trial, trial)
        worse = [one for one in comparison.summarize_effects(effects) if one.effect.forbids]
        hardware = next((run.hardware for run in trial.runs if run.hardware != self.hardware), self.hardware)
        if worse and hardware == self.hardware:
            return Tried(State.BAD, "; ".join(map(describe_change, worse)), effects, trial)
        trouble = trial.why_none
        if not trouble and hardware != self.hardware:
            trouble = f"the hardware changed: {hardware}, before it was {self.hardware}"
        if not trouble and not comparison.is_driven(effects, after=True):
            trouble = "none of the tests can be driven there"
        return Tried(State.UNKNOWN if trouble else State.GOOD, trouble, effects, trial)

    def _report(self, trial: Trial, state: State, reason: str, known: bool) -> None:
        row = summarize_tests(trial, state, reason)
        self.rows.append(row)
        if not known:
            self._progress.report_trial(row)


def describe_change(change: VerdictChange) -> str:
    """Describe in a line what an upgrade does to a failure's tests, or to one test."""
    side = f" ({change.side})" if change.side else ""
    reason = f": {change.reason}" if change.reason and change.reason != change.verdict else ""
    return f"{change.name}{side}: {change.before} -> {change.after}{reason}"


@dataclass(frozen=True)
class GrownSet:
    """The largest set of upgrades that makes nothing worse.

    Attributes:
        safe_set: The set.
        lock: This environment with it.
    """

    safe_set: SafeSet
    lock: Lock


def grow(upgrades: Upgrades, asked: Collection[str], baseline: Baseline) -> GrownSet:
    """Try sets of upgrades until the largest one is found that makes nothing worse.

    Args:
        upgrades: What moves, in the smallest units that can be moved.
        asked: The packages that were asked for; all others move only with those that need them.
        baseline: The environment as it is.

    Raises:
        NoSpace: The disk is full.
    """
    order = [unit for unit in upgrades.units.order if not set(asked).isdisjoint(upgrades.units.members[unit])]
    needs = {unit: upgrades.units.needs[unit] & set(order) for unit in order}
    tried: dict[Units, Tried] = {}
    while True:
        states = {NONE: State.GOOD, **{subset: one.state for subset, one in tried.items()}}
        step = next_growth(order, needs, states)
        if isinstance(step, LargestSet):
            return _describe(upgrades, step, tried)
        back = list_steps_back(upgrades.locks.by_name[name] for name in upgrades.names(step.subset))
        if back:
            tried[step.subset] = Tried(State.BAD, ", ".join(back))
            continue
        tried[step.subset] = baseline.compare(upgrades.candidate(step.subset))


def _describe(upgrades: Upgrades, found: LargestSet, tried: Mapping[Units, Tried]) -> GrownSet:
    changes = upgrades.locks.by_name

    def describe(unit: str) -> tuple[str, ...]:
        return tuple(str(changes[name]) for name in upgrades.units.members[unit])

    def explain(because: Units | str) -> str:
        if isinstance(because, str):
            return f"needs {' and '.join(describe(because))}"
        one = tried[because]
        return one.reason if one.state is State.BAD else f"could not be tested: {one.reason}"

    kept = upgrades.names(found.kept)
    left_out = tuple(LeftOut(describe(unit), explain(because)) for unit, because in sorted(found.left_out.items()))
    return GrownSet(SafeSet(tuple(str(changes[name]) for name in kept), left_out), upgrades.locks.apply(kept))
