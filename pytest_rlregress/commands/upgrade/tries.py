"""Try sets of upgrades, and compare each with the environment as it is."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlregress.commands.trials.progress import Progress, ProgressWindow
from pytest_rlregress.commands.trials.runner import Candidate, TrialRunner
from pytest_rlregress.commands.trials.summaries import TrialSummary, summarize_tests
from pytest_rlregress.commands.trials.trial import RequestError, State, Trial
from pytest_rlregress.commands.upgrade import comparison
from pytest_rlregress.commands.upgrade.comparison import TestEffect, VerdictChange


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
        self._report(self.trial, State.GOOD, "", known, None)

    @property
    def hardware(self) -> str:
        """The profile and the devices, in words."""
        return self.trial.runs[0].hardware

    def compare(self, candidate: Candidate, window: ProgressWindow | None = None) -> Tried:
        """Try a set of upgrades, once, and compare it with the environment as it is.

        Raises:
            NoSpace: The disk is full.
        """
        seen = any(row.label == candidate.label for row in self.rows)
        known = not seen and self._runner.find_trial(candidate) is not None
        trial = self._runner.try_(candidate)
        tried = self._judge(trial)
        if not seen:
            self._report(trial, tried.state, tried.reason, known, window)
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

    def _report(self, trial: Trial, state: State, reason: str, known: bool, window: ProgressWindow | None) -> None:
        row = summarize_tests(trial, state, reason)
        self.rows.append(row)
        if not known:
            self._progress.report_trial(row, window)


def describe_change(change: VerdictChange) -> str:
    """Describe in a line what an upgrade does to a failure's tests, or to one test."""
    side = f" ({change.side})" if change.side else ""
    reason = f": {change.reason}" if change.reason and change.reason != change.verdict else ""
    return f"{change.name}{side}: {change.before} -> {change.after}{reason}"
