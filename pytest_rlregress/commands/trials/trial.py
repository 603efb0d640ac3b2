"""A trial: a lock and the records of its runs, kept in a folder, a file for every finished one."""

from __future__ import annotations

import enum
import json
import platform
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from pytest_rlregress.commands.environments import RequestError
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.hardware.matching import gib
from pytest_rlregress.records.record_types import Record, RecordedTest
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util import files

#: The form of a file: part of what tells requests from each other.
FORMAT = 5
#: Verdicts of a test that came out well.
GOOD_VERDICTS = frozenset({"passed", "held", "absent"})
_KNOWN = " (known from before: --fresh tries it again)"


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
        failure: Id of the documented failure whose side it is, or "".
        side: ``reproduces``, ``guards`` or "".
        named: Ids of the documented failures that what came out looks like.
    """

    test: str
    outcome: Outcome
    verdict: str
    text: str = ""
    failure: str = ""
    side: str = ""
    named: tuple[str, ...] = ()


def _observe(test: RecordedTest, outcome: Outcome) -> Observation:
    extra = test.extra
    verdict = extra.verdict or ("unavailable" if outcome.kind == "skipped" else outcome.kind)
    if outcome.phase == "collect" and outcome.kind != "skipped":
        verdict = "uncollected"
    elif outcome.phase == "teardown":
        verdict = "failed"
    text = "" if verdict in GOOD_VERDICTS else test.trace
    named = tuple(filter(None, extra.named.split(",")))
    return Observation(test.name, outcome, verdict, text, extra.failure, extra.side, named)


class TrialRun(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """One pytest run in an environment.

    Attributes:
        record: Of the run, or as much of it as a killed one has left.
        seconds: How long it took.
        trouble: Why the run says nothing about its tests (did not end, no such test), or "".
        needed: Components of the stack that the tests say they need; None where one of them says nothing.
        imported: Files of the modules that its processes imported, where that was asked for.
    """

    record: Record | None = None
    seconds: float = 0.0
    trouble: str = ""
    needed: tuple[str, ...] | None = None
    imported: tuple[str, ...] = ()

    @cached_property
    def observations(self) -> Mapping[str, Observation]:
        """Every test seen, by its key."""
        tests = self.record.results.tests if self.record else ()
        return {test.name: _observe(test, test.extra.outcome) for test in tests if test.extra.outcome is not None}

    @property
    def hardware(self) -> str:
        """The profile and the devices of the run, in words."""
        if self.record is None:
            return ""
        found = self.record.results.extra.hardware
        devices = "; ".join(
            f"{one.name} ({'MIG slice, ' if one.mig else ''}capability {one.capability}, {gib(one.memory_bytes)})"
            for one in found.devices
            if found.profile != "cpu"
        )
        return " of ".join(filter(None, [found.profile, devices]))


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """One lock tried: its environment built and its runs, or why there were none.

    Attributes:
        label: The candidate in words, such as ``transformers 5.0.0``.
        lock: Its packages; None where they could not be resolved or installed.
        runs: As many as ``--repeat`` asks for.
        trouble: Why no environment could be built: a resolver conflict, an install error; else "".
        conflict: All that the resolver or installer said then, where it is more than ``trouble``.
        build_seconds: To resolve and build the environment; about 0 for one that was there.
        moved: What else had to move, as ``name before -> after``, against the lock that is held fixed.
        same_as: Label of the trial whose runs these are, because it was of the same set of packages; else "".
    """

    label: str
    lock: Lock | None = None
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

    @property
    def why_none(self) -> str:
        """Why it says nothing of its tests, or not of all: what keeps it from being built, or a run from its end."""
        return self.trouble or next((run.trouble for run in self.runs if run.trouble), "")


class TrialFolder:
    """The finished trials of one request, in the order of the trying.

    Attributes:
        trials: By their label.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.trials = path, dict[str, Trial]()

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, fresh: bool = False) -> Generator[TrialFolder]:
        """Go on with a folder, or begin it: this process has it alone as long as the context lasts.

        Args:
            path: The folder; made if it is not there.
            fresh: Forget the trials in it.

        Raises:
            RequestError: Another process has it, or a file in it is damaged.
            OSError: It cannot be made or locked.
        """
        path.mkdir(parents=True, exist_ok=True)
        with open(path / "lock", "w") as lock:
            if not files.lock(lock.fileno()):
                raise RequestError(f"{path}: the same command is already running; wait for its end or stop it.")
            folder = cls(path)
            for file in sorted(path.glob("[0-9]*.json")):
                if fresh:
                    file.unlink()
                else:
                    trial = _read(file)
                    folder.trials[trial.label] = trial
            yield folder

    def add(self, trial: Trial) -> None:
        """Keep a finished trial: it is on disk when this returns.

        Raises:
            OSError: It could not be written (a full disk).
        """
        text = json.dumps(msgspec.to_builtins(trial))
        files.write_whole(self._path / f"{len(self.trials):05}.json", text, sync=True)
        self.trials[trial.label] = trial


def _read(file: Path) -> Trial:
    try:
        trial = msgspec.convert(json.loads(file.read_bytes()), Trial)
    except ValueError as error:
        raise RequestError(f"{file}: is damaged ({error}); remove it, or start over with --fresh.") from None
    runs = (
        msgspec.structs.replace(run, trouble=run.trouble.removesuffix(_KNOWN) + _KNOWN) if run.trouble else run
        for run in trial.runs
    )
    return msgspec.structs.replace(trial, runs=tuple(runs))


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
