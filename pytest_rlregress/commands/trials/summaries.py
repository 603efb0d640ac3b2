"""What is said of trials: a line for each, where they were made, and why a candidate could not be tested."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_rlregress.commands.trials.trial import State, Trial


@dataclass(frozen=True)
class Untested:
    """A candidate that is neither good nor bad: yanked, no wheel, a resolver conflict, another failure, flaky."""

    label: str
    reason: str


@dataclass(frozen=True)
class RunContext:
    """The Python, the platform and the packages that all trials had in common.

    Attributes:
        python: ``3.12.3``.
        platform: ``Linux x86_64, glibc 2.39``.
        hardware: The profile and the devices, in words.
        held: Versions of the main components of the stack that were the same throughout.
        left_out: What of this environment the trials' environments did not have, in words.
    """

    python: str
    platform: str
    hardware: str
    held: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @classmethod
    def here(cls, hardware: str, held: Mapping[str, str] | None = None, left_out: tuple[str, ...] = ()) -> RunContext:
        """Describe this Python and this platform, and what was held fixed."""
        where = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
        return cls(platform.python_version(), where, hardware, held or {}, left_out)


@dataclass(frozen=True)
class TrialSummary:
    """A trial in one line.

    Attributes:
        label: The candidate in words.
        state: ``good``, ``bad`` or ``unknown``.
        verdict: The verdict, several where repeats differ; "" where there was no run.
        seconds: To build its environment and run its tests.
        runs: How many runs it had.
        reason: Why it is unknown.
    """

    label: str
    state: State
    verdict: str
    seconds: float
    runs: int = 1
    reason: str = ""


def summarize_trial(trial: Trial, test: str, state: State, reason: str = "") -> TrialSummary:
    """Summarize a trial in one line, about the test of that key."""
    seen = [run.observations[test].verdict for run in trial.runs if test in run.observations]
    words = [word if seen.count(word) == len(seen) else f"{seen.count(word)} {word}" for word in dict.fromkeys(seen)]
    if trial.same_as:
        reason = reason or f"the same packages as {trial.same_as}"
    runs = 0 if trial.same_as else len(trial.runs)
    return TrialSummary(trial.label, state, ", ".join(words), trial.seconds, runs, reason)


def summarize_tests(trial: Trial, state: State, reason: str) -> TrialSummary:
    """Summarize a trial in one line, its tests by what came out of them."""
    counts = Counter(one.verdict for run in trial.runs for one in run.observations.values())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return TrialSummary(trial.label, state, verdicts, trial.seconds, len(trial.runs), reason)
