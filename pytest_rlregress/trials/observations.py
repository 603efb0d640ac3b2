"""A test as seen in a run, a run in an environment, a trial of a candidate: what a journal keeps."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_rlregress.verdicts import Outcome


class State(enum.StrEnum):
    """What a candidate is to one test."""

    GOOD = "good"
    BAD = "bad"  # the failure of the bad end
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Observation:
    """One test as seen in one run.

    Attributes:
        test: Which test, by a key that is the same in every environment: ``batch/test_x.py::test_y[a]`` for a shipped
            scenario, else pytest's node id.
        outcome: What came out of it.
        verdict: The verdict of a test with a side, else ``passed``, ``failed``, ``crashed``, ``hung``, ``unavailable``
            (skipped), ``blocked`` or ``uncollected`` (its file could not be imported).
        text: The report's text where it failed, or what came out where that was documented.
        failure: Id of the documented failure whose side it is, or None.
        side: ``reproduces``, ``guards`` or None.
        named: Ids of the documented failures that what came out looks like.
        measured: What a training step measured in it: docs/record.md; None for any other test.
    """

    test: str
    outcome: Outcome
    verdict: str
    text: str = ""
    failure: str | None = None
    side: str | None = None
    named: tuple[str, ...] = ()
    measured: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Observation:
        """Read what was written as JSON, with the tuples that JSON made lists."""
        return cls(**{**_tuples(found), "outcome": Outcome(**_tuples(found["outcome"]))})


def _tuples(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


@dataclass(frozen=True)
class TrialRun:
    """One pytest run in an environment.

    Attributes:
        observations: Every test seen, by its key.
        hardware: The profile and the devices of the run, in words.
        seconds: How long it took.
        trouble: Why the run says nothing about its tests (did not end, no such test), or "".
        needed: Components of the stack that the tests say they need; None where one of them says nothing.
        imported: Files of the modules that its processes imported, where that was asked for.
    """

    observations: Mapping[str, Observation] = field(default_factory=dict)
    hardware: str = ""
    seconds: float = 0.0
    trouble: str = ""
    needed: tuple[str, ...] | None = None
    imported: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TrialRun:
        """Read what was written as JSON."""
        observations = {test: Observation.from_json(one) for test, one in found["observations"].items()}
        return cls(**{**_tuples(found), "observations": observations})


@dataclass(frozen=True)
class Trial:
    """One lock tried: its environment built and its runs, or why there were none.

    Attributes:
        label: The candidate in words, such as ``transformers 5.0.0``.
        digest: The lock's.
        runs: As many as ``--repeat`` asks for.
        trouble: Why no environment could be built: a resolver conflict, an install error; else "".
        conflict: All that the resolver or installer said then, where it is more than ``trouble``.
        build_seconds: To resolve and build the environment; about 0 for one that was there.
        moved: What else had to move, as ``name before -> after``, against the lock that is held fixed.
        same_as: Label of the trial whose runs these are, because it was of the same set of packages; else "".
    """

    label: str
    digest: str
    runs: tuple[TrialRun, ...] = ()
    trouble: str = ""
    build_seconds: float = 0.0
    moved: tuple[str, ...] = ()
    same_as: str = ""
    conflict: str = ""

    @property
    def seconds(self) -> float:
        """What it took, building included."""
        return 0.0 if self.same_as else self.build_seconds + sum(run.seconds for run in self.runs)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Trial:
        """Read what was written as JSON."""
        return cls(**{**_tuples(found), "runs": tuple(map(TrialRun.from_json, found["runs"]))})
