"""Try candidates: an environment for the lock, the runs, their records in a folder. Nothing is tried twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

from msgspec import structs

from pytest_rlregress.commands.environments import requirements
from pytest_rlregress.commands.environments.environment import Environment
from pytest_rlregress.commands.environments.requirements import Requirements, UpgradeUnits
from pytest_rlregress.commands.environments.uv import Unbuildable
from pytest_rlregress.commands.trials import pytest_run
from pytest_rlregress.commands.trials.progress import Progress, join_some
from pytest_rlregress.commands.trials.search import Units
from pytest_rlregress.commands.trials.trial import Trial, TrialFolder, TrialSummary
from pytest_rlregress.stack.locks import Lock, PackageChange, differences


@dataclass(frozen=True)
class Candidate:
    """Something to try.

    Attributes:
        label: In words, unique in a request: ``transformers 5.0.0``.
        lock: Resolves it; raises Unbuildable where that cannot be.
        base: The lock that is held fixed, against which is told what had to move.
        subjects: The packages it is about: these are not told among what had to move.
    """

    label: str
    lock: Callable[[], Lock]
    base: Lock
    subjects: frozenset[str] = frozenset()


class Builder(Protocol):
    """Builds environments."""

    def build(self, lock: Lock) -> Environment:
        """The environment of a lock; raises Unbuildable, or RequestError where the disk is full."""


class TrialRunner:
    """Tries candidates for the tests of one request.

    Args:
        environments: Builds them.
        folder: What was tried before, and where it is kept.
        request: The tests.
        progress: Told of every trial.
        repeat: Runs of each candidate.
        timeout: Seconds a run may take.
    """

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
        self._progress, self._repeat, self._timeout = progress, repeat, timeout
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
        """Try a candidate, once, and report what came out.

        Args:
            candidate: It.
            summarize: Says what came out.
            role: ``good end`` or ``bad end`` while these are proven.

        Raises:
            RequestError: The disk is full.
        """
        found = self.find_trial(candidate)
        if found is None:
            found = self._try(candidate)
            self._known[candidate.label] = self.trials[candidate.label] = found
            if not found.trouble:  # what could not be built, such as without network, may be another time
                self._folder.add(found)
            self._progress.report_trial(summarize(found), role=role, moved=found.moved)
        return found

    def _try(self, candidate: Candidate) -> Trial:
        begun = time.monotonic()
        self._progress.set_activity(candidate.label)
        try:
            lock = candidate.lock()
            twin = next((one for one in self._known.values() if one.lock == lock and one.runs), None)
            if twin is not None:  # the same set of packages by another name
                return structs.replace(twin, label=candidate.label, same_as=twin.same_as or twin.label)
            environment = self._environments.build(lock)
        except Unbuildable as error:
            seconds = time.monotonic() - begun
            return Trial(candidate.label, trouble=str(error), build_seconds=seconds, conflict=error.conflict)
        built = time.monotonic() - begun
        run = partial(pytest_run.run_tests, environment.python, self._request, timeout=self._timeout)
        runs = tuple(run(say=self._progress.say) for _ in range(self._repeat))
        moved = (one for one in differences(candidate.base, lock) if one.name not in candidate.subjects)
        return Trial(candidate.label, lock, runs, "", built, tuple(map(str, moved)))


@dataclass(frozen=True)
class LockChanges:
    """What changed between two locks.

    Attributes:
        before: The one lock.
        after: The other one.
        labels: Both in words: ``the good lock``.
    """

    before: Lock
    after: Lock
    labels: tuple[str, str]

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
    """What changed between two locks, in units: packages that can only be moved together.

    Attributes:
        locks: The changes.
        units: The units, each after those it needs, and what they need.
    """

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
    """Group what changed into units.

    Args:
        locks: The changes.
        requires: What the packages of either lock require of each other.
    """
    ends = ((_versions(lock), some) for lock, some in zip((locks.before, locks.after), requires, strict=True))
    return Upgrades(locks, requirements.group_changes([*locks.by_name.values()], *ends))


def _versions(lock: Lock) -> dict[str, str]:
    return {name: lock.version(name) or "" for name in lock.lines}
