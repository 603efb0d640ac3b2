"""Compare what came out of a test with the failure of the bad end. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from pytest_rlregress.commands.trials.pytest_run import Observation, TrialRun
from pytest_rlregress.commands.trials.search import State
from pytest_rlregress.commands.trials.trial import Trial
from pytest_rlregress.commands.trials.trial_plugin import GOOD_VERDICTS
from pytest_rlregress.failures.verdicts import Outcome

#: Of a test that says nothing about its failure: a component is missing or broken.
_NOT_RUN = ("unavailable", "blocked")
_DOCUMENTED = frozenset({"reproduced", "returned"})
_INNERMOST = 5
# What differs from run to run though the failure is the same. How a process ended is kept: it tells failures apart.
_VOLATILE = re.compile(
    r"""
    (?P<exit>\bexit(?:ed\ with)?\ (?:code|status):?\ -?\d+)
  | (?P<path>(?<![\w.:/…])(?:[A-Za-z]:)?~?[/\\][^\s'"`,;:()\[\]{}<>|]+)
  | \b0x[0-9a-fA-F]+
  | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b
  | \b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}\b
  | \btmp[a-z0-9_]{6,8}\b
  | (?<![A-Za-z\d.])(?:(?<!\w)[-+])?\d+(?:[.,_:]\d+)*                       # number, time, address, version …
    (?:e[-+]?\d+ | (?:\.?(?:a|b|rc|dev|post)\d+)*(?:\+\w[\w.]*)?)           # … with its exponent, or its suffixes
    (?:\ ?(?:ns|us|µs|ms|s|sec|seconds?|min|minutes?|h|hours?|[kKMGT]i?B|B|bytes|%))?(?![A-Za-z\d])
    """,
    re.VERBOSE,
)
_LONG_QUOTED = re.compile(r"(?<!\w)(['\"`])(?:(?!\1).){40,}\1(?!\w)")
# The line of an exception that a message quotes, such as a Ray task's or a child process'.
_CAUSE = re.compile(r"^.*?\b((?:\w+\.)*\w*(?:Error|Exception): .*)", re.MULTILINE)
_CAUSE_IN_LOG = re.compile(r"\bsee\b.*\b(?:above|logs?)\b", re.IGNORECASE)
_RUNNER = re.compile(r"/_pytest/|/pluggy/|/pytest_rlregress/containment/|^<")


class TrialResult(NamedTuple):
    """What a candidate, or one run of it, is to one test, and why in one line."""

    state: State
    reason: str


def classify_trial(trial: Trial, test: str, bad: Observation | None, hardware: str = "") -> TrialResult:
    """Say whether one test, by its key, is good or bad in all runs of a trial, as ``compare_with_bad_end`` does."""
    if trial.trouble:
        return TrialResult(State.UNKNOWN, trial.trouble)
    runs = ((find_observation(run, test), run) for run in trial.runs)
    return combine_runs([compare_with_bad_end(seen, run, bad, hardware) for seen, run in runs])


def compare_with_bad_end(
    observation: Observation | None, run: TrialRun, bad: Observation | None, hardware: str = ""
) -> TrialResult:
    """Compare a test in a run with the bad end: is it good, or bad in the same way?

    Args:
        observation: The test in the run; None if it was not seen there.
        run: The run.
        bad: The test at the bad end; None while the ends are being proven: any failure is bad then.
        hardware: What the bad end ran on; "" if not known.
    """
    if observation is None:
        stopped = (f"was not run: {describe(one)}" for one in run.observations.values() if one.verdict == "uncollected")
        return TrialResult(State.UNKNOWN, run.trouble or next(stopped, "no such test here"))
    if hardware and run.hardware and run.hardware != hardware:
        return TrialResult(State.UNKNOWN, f"hardware changed: {run.hardware}, the bad end ran on {hardware}")
    if observation.verdict in _NOT_RUN:
        return TrialResult(State.UNKNOWN, f"did not run: {_first_line(observation.outcome.message) or 'skipped'}")
    line = describe(observation)
    if not is_failing(observation):
        return TrialResult(State.GOOD, line)
    if observation.outcome.message.startswith("could not be contained: "):
        return TrialResult(State.UNKNOWN, line)
    if bad is None or is_same_failure(observation, bad):
        return TrialResult(State.BAD, line)
    return TrialResult(State.UNKNOWN, f"fails otherwise: {line}")


def combine_runs(states: Sequence[TrialResult]) -> TrialResult:
    """Combine repeated runs: what all of them say, else unknown, with the counts."""
    counts = Counter(state for state, _ in states)
    if len(counts) == 1:
        return states[0]
    if not counts:
        return TrialResult(State.UNKNOWN, "was not run")
    counted = ", ".join(f"{counts[state]} {state.value}" for state in State if counts[state])
    reason = next((f" ({reason})" for state, reason in states if state is State.UNKNOWN), "")
    return TrialResult(State.UNKNOWN, f"flaky: {counted} of {len(states)}{reason}")


def find_observation(run: TrialRun, test: str) -> Observation | None:
    """Find a test in a run; else what kept it from being run: its file, or a conftest file, that cannot be imported."""
    conftests = (one for one in run.observations.values() if one.test.endswith("conftest.py"))
    return run.observations.get(test) or run.observations.get(test.partition("::")[0]) or next(conftests, None)


def is_failing(observation: Observation) -> bool:
    """Return whether a test ran and did not come out well: a documented failure that is reproduced is one."""
    return observation.verdict not in (*GOOD_VERDICTS, *_NOT_RUN)


def is_same_failure(observation: Observation, bad: Observation) -> bool:
    """Return whether two tests fail in the same way.

    Both bear the same documented failure; or both end alike: the same kind of end, class of exception, signal, and
    first line up to numbers, addresses, paths, times and long quoted values; where one hung, in the same place.
    """
    if not (is_failing(observation) and is_failing(bad)):
        return False
    if list_documented(observation) & list_documented(bad):
        return True
    if _fingerprint(observation.outcome) != _fingerprint(bad.outcome):
        return False
    places = _find_hang_places(observation), _find_hang_places(bad)
    return observation.outcome.kind != "hung" or places == (set(), set()) or bool(places[0] & places[1])


def describe(observation: Observation) -> str:
    """Describe in one line how a test came out."""
    outcome, line = observation.outcome, _first_line(observation.outcome.message)
    if not is_failing(observation):
        return observation.verdict
    if outcome.kind == "failed":
        line = ": ".join(filter(None, [_exception_class(outcome), line])) or "failed"
    where = {"collect": f"import of {observation.test}: ", "setup": "in set-up: ", "teardown": "in teardown: "}
    return where.get(outcome.phase, "") + line


def normalise(text: str) -> str:
    """Take out of a text what differs from run to run; a number in a name, such as ``float16``, is part of the name."""

    def steady(found: re.Match[str]) -> str:
        if found["exit"]:
            return found[0]
        name = PurePath(found["path"] or "").name
        return f"…/{normalise(name)}" if "." in name else "…" if found["path"] else "#"

    return _LONG_QUOTED.sub(r"\1…\1", _VOLATILE.sub(steady, text))


def list_documented(observation: Observation) -> set[str]:
    """List the ids of the documented failures that a test shows: its own, or those that what came out looks like."""
    own = {observation.failure} if observation.failure and observation.verdict in _DOCUMENTED else set()
    return own | set(observation.named)


def _fingerprint(outcome: Outcome) -> tuple[str, ...]:
    """Reduce an outcome to what it has in common with others of the same failure."""
    line = _first_line(outcome.message)
    if outcome.kind == "crashed" and outcome.signal:
        return outcome.kind, outcome.signal
    searched = f"{outcome.log}\n{outcome.message}" if _CAUSE_IN_LOG.search(outcome.message) else outcome.message
    cause = next(reversed(_CAUSE.findall(searched)), "")
    place = "" if line else next((_without_folder(frame) for frame in reversed(outcome.frames)), "")
    return outcome.kind, _exception_class(outcome), outcome.signal or "", normalise(line), normalise(cause), place


def _exception_class(outcome: Outcome) -> str:
    """Return the class of an exception alone: it is the same failure where a release has moved it to another module."""
    return outcome.exceptions[0].rpartition(".")[2] if outcome.exceptions else ""


def _find_hang_places(observation: Observation) -> set[str]:
    """Find where a test hung: in which functions of its own file, else in which innermost ones; without folders."""
    own = PurePath(observation.test.partition("::")[0]).name
    frames = [_without_folder(frame) for frame in observation.outcome.frames if not _RUNNER.search(frame)]
    return {frame for frame in frames if frame.startswith(f"{own}:")} or set(frames[:_INNERMOST])


def _without_folder(frame: str) -> str:
    return frame.replace("\\", "/").rpartition("/")[2]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
