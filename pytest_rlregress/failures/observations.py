"""One test as seen in a run, and whether it fails there as it does elsewhere. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from pytest_rlregress.failures.verdicts import Outcome, Rank, Verdict, rank

_DOCUMENTED = (Verdict.REPRODUCED, Verdict.RETURNED)
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


@dataclass(frozen=True)
class Observation:
    """One test as seen in one run.

    Its key is the same in every environment: ``batch/test_x.py::test_y[a]`` for a shipped scenario, else pytest's node
    id. Without a side its verdict is ``passed``, ``failed``, ``crashed``, ``hung``, ``unavailable`` (skipped),
    ``blocked`` or ``uncollected`` (its file could not be imported).
    """

    test: str
    outcome: Outcome
    verdict: str
    text: str = ""  # the report's where it failed, or what came out where that was documented
    failure: str = ""  # id of the documented failure whose side it is
    side: str = ""  # ``reproduces`` or ``guards``
    named: tuple[str, ...] = ()  # ids of the documented failures that what came out looks like
    untried: str = ""  # of a bad verdict: the releases there that the failure was not tried with
    expected: str = ""  # of a bad verdict that the file of expectations has: the issue


def is_failing(observation: Observation) -> bool:
    """Return whether a test ran and did not come out well: a documented failure that is reproduced is one."""
    return rank(observation.verdict) > Rank.GOOD


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
    outcome, line = observation.outcome, find_first_line(observation.outcome.message)
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
        path = found["path"] or ""
        name = re.split(r"[/\\]", path)[-1]  # of Windows, too
        if "." in name and name != path:
            return f"…/{normalise(name)}"
        return "…" if path else "#"

    return _LONG_QUOTED.sub(r"\1…\1", _VOLATILE.sub(steady, text))


def list_documented(observation: Observation) -> set[str]:
    """List the ids of the documented failures that a test shows: its own, or those that what came out looks like."""
    own = {observation.failure} if observation.failure and observation.verdict in _DOCUMENTED else set()
    return own | set(observation.named)


def _fingerprint(outcome: Outcome) -> tuple[str, ...]:
    """Reduce an outcome to what it has in common with others of the same failure."""
    line = find_first_line(outcome.message)
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


def find_first_line(text: str) -> str:
    """Find the first line of a text that says something; "" if none does."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
