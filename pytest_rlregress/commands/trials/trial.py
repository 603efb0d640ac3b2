"""A trial: a candidate's lock, built, and the runs of the tests in it. Nothing is tried twice: a folder keeps them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import msgspec

from pytest_rlregress.commands.environments import RequestError, requirements
from pytest_rlregress.commands.environments.environment import Environment
from pytest_rlregress.commands.environments.requirements import Requirements, UpgradeUnits
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.commands.trials import pytest_run
from pytest_rlregress.commands.trials.document import Progress, TrialSummary, join_some
from pytest_rlregress.commands.trials.pytest_run import TrialRun
from pytest_rlregress.commands.trials.search import State, Units
from pytest_rlregress.stack.locks import Lock, PackageChange, differences
from pytest_rlregress.util import files

#: The form of a trial's file: part of what tells requests from each other.
FORMAT = 6


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """One lock tried: its environment built and its runs, or why there were none."""

    label: str  # the candidate in words, such as ``transformers 5.0.0``
    lock: Lock | None = None  # None where it could not be resolved or installed
    runs: tuple[TrialRun, ...] = ()  # as many as ``--repeat`` asks for
    trouble: str = ""  # why no environment could be built: a resolver conflict, an install error
    build_seconds: float = 0.0  # to resolve and build the environment
    moved: tuple[str, ...] = ()  # what else had to move, as ``name before -> after``
    conflict: str = ""  # all that the resolver said, where it is more than ``trouble``

    @property
    def seconds(self) -> float:
        """What it took, building included."""
        return self.build_seconds + sum(run.seconds for run in self.runs)

    @property
    def why_none(self) -> str:
        """Why it says nothing of its tests, or not of all: what keeps it from being built, or a run from its end."""
        return self.trouble or next((run.trouble for run in self.runs if run.trouble), "")


def summarize_trial(trial: Trial, test: str, state: State, reason: str = "") -> TrialSummary:
    """Summarize a trial in one line, about the test of that key."""
    seen = [run.observations[test].verdict for run in trial.runs if test in run.observations]
    words = [word if seen.count(word) == len(seen) else f"{seen.count(word)} {word}" for word in dict.fromkeys(seen)]
    return TrialSummary(trial.label, state, ", ".join(words), trial.seconds, len(trial.runs), reason)


def summarize_tests(trial: Trial, state: State, reason: str) -> TrialSummary:
    """Summarize a trial in one line, its tests by what came out of them."""
    counts = Counter(one.verdict for run in trial.runs for one in run.observations.values())
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return TrialSummary(trial.label, state, verdicts, trial.seconds, len(trial.runs), reason)


class TrialFolder:
    """The finished trials of one request, by their label, in the order of the trying."""

    def __init__(self, path: Path) -> None:
        self._path, self.trials = path, dict[str, Trial]()

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, fresh: bool = False) -> Generator[TrialFolder]:
        """Open a folder, made if it is not there: this process has it alone as long as the context lasts.

        Args:
            path: The folder.
            fresh: Forget the trials in it.

        Raises:
            RequestError: Another process has it.
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
                    with suppress(ValueError):  # a damaged file: that one is tried again
                        trial = msgspec.convert(json.loads(file.read_bytes()), Trial)
                        folder.trials[trial.label] = trial
            yield folder

    def add(self, trial: Trial) -> None:
        """Keep a finished trial: it is on disk when this returns.

        Raises:
            OSError: It could not be written (a full disk).
        """
        text = json.dumps(msgspec.to_builtins(trial))
        number = len([*self._path.glob("[0-9]*.json")])
        files.write_whole(self._path / f"{number:05}.json", text, sync=True)
        self.trials[trial.label] = trial


# -- candidates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """Something to try."""

    label: str  # in words, unique in a request: ``transformers 5.0.0``
    lock: Callable[[], Lock]  # resolves it; raises Unbuildable where that cannot be
    base: Lock  # held fixed: against it is told what had to move, beside the subjects
    subjects: frozenset[str] = frozenset()  # the packages it is about
    name: str = ""  # of a release its version, of a commit the beginning of its id
    day: str | None = None  # when it was released or committed, in ISO form
    title: str = ""  # of a commit its subject


class Builder(Protocol):
    """Builds environments."""

    def build(self, lock: Lock) -> Environment:
        """Build a lock's environment; raises Unbuildable, or RequestError where the disk is full."""


class TrialRunner:
    """Tries candidates for the tests of one request; ``timeout`` are the seconds that one run may take."""

    def __init__(
        self,
        environments: Builder,
        folder: TrialFolder,
        request: pytest_run.TrialRequest,
        progress: Progress,
        *,
        repeat: int,
        timeout: float,
    ) -> None:
        self._environments, self._folder, self._request = environments, folder, request
        self.progress, self._repeat, self._timeout = progress, repeat, timeout
        self._known = dict(folder.trials)
        #: What the trials took that are known from before.
        self.seconds_before = sum(trial.seconds for trial in folder.trials.values())
        #: Every trial of this request, in the order in which they were asked for.
        self.trials: dict[str, Trial] = {}

    def run_only(self, tests: Iterable[str]) -> None:
        """Run only these tests from now on."""
        self._request = replace(self._request, tests=frozenset(tests))

    def find_trial(self, candidate: Candidate) -> Trial | None:
        """Find the trial of a candidate, if it was tried."""
        found = self._known.get(candidate.label)
        if found is not None:
            self.trials.setdefault(candidate.label, found)
        return found

    def try_(self, candidate: Candidate, summarize: Callable[[Trial], TrialSummary], role: str = "") -> Trial:
        """Try a candidate, once, and report what came out; ``role`` is ``good end``, ``bad end`` or "".

        Raises:
            RequestError: The disk is full.
        """
        found = self.find_trial(candidate)
        if found is None:
            found = self._try(candidate)
            self._known[candidate.label] = self.trials[candidate.label] = found
            if not found.why_none:  # what was not built, or did not end, may be another time
                self._folder.add(found)
            self.progress.report_trial(summarize(found), role=role, moved=found.moved)
        return found

    def _try(self, candidate: Candidate) -> Trial:
        begun = time.monotonic()
        self.progress.set_activity(candidate.label)
        try:
            lock = candidate.lock()
            environment = self._environments.build(lock)
        except Unbuildable as error:
            seconds = time.monotonic() - begun
            return Trial(candidate.label, trouble=str(error), build_seconds=seconds, conflict=error.conflict)
        built = time.monotonic() - begun
        run = partial(pytest_run.run_tests, environment.python, self._request, timeout=self._timeout)
        runs = tuple(run(say=self.progress.say) for _ in range(self._repeat))
        moved = (one for one in differences(candidate.base, lock) if one.name not in candidate.subjects)
        return Trial(candidate.label, lock, runs, "", built, tuple(map(str, moved)))


@dataclass(frozen=True)
class LockChanges:
    """The packages that changed between two locks."""

    before: Lock
    after: Lock
    labels: tuple[str, str]  # both in words: ``the good lock``

    @cached_property
    def by_name(self) -> Mapping[str, PackageChange]:
        """Every package that differs."""
        return {change.name: change for change in differences(self.before, self.after)}

    def apply(self, names: Iterable[str]) -> Lock:
        """Return the lock of before with these packages as in the other one."""
        return self.before.having({name: self.after.lines.get(name) for name in names})

    def candidate(self, names: Iterable[str]) -> Candidate:
        """Return the lock of before with these packages as in the other one, to be tried."""
        chosen, changed = sorted(names), len(self.by_name)
        lock = self.apply(chosen)
        label = f"{len(chosen)} of {changed} upgrades ({lock.digest[:6]}): {join_some(chosen)}"
        label = {0: self.labels[0], changed: self.labels[1]}.get(len(chosen), label)
        return Candidate(label, lambda: lock, self.before, frozenset(chosen))


@dataclass(frozen=True)
class Upgrades:
    """The packages that changed between two locks, in units: packages that can only be moved together."""

    locks: LockChanges
    units: UpgradeUnits

    def names(self, units: Iterable[str]) -> list[str]:
        """Return the packages of some units and of those that they need."""
        closed = {need for unit in units for need in (unit, *self.units.needs.get(unit, ()))}
        return sorted(name for unit in closed for name in self.units.members[unit])

    def candidate(self, units: Units) -> Candidate:
        """Return the lock of before with these units as in the other one, to be tried."""
        return self.locks.candidate(self.names(units))


def group_upgrades(locks: LockChanges, requires: tuple[Requirements, Requirements]) -> Upgrades:
    """Group what changed into units, by what the packages of either lock require of each other."""
    both = zip((locks.before, locks.after), requires, strict=True)
    ends = (({name: lock.version(name) or "" for name in lock.lines}, some) for lock, some in both)
    return Upgrades(locks, requirements.group_changes([*locks.by_name.values()], *ends))
