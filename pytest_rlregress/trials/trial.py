"""A trial: a candidate's lock, built, and the runs of the tests in it. Nothing is tried twice: a folder keeps them."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import msgspec

from pytest_rlregress.environments import RequestError
from pytest_rlregress.environments.environment import Environment
from pytest_rlregress.environments.uv import Unbuildable
from pytest_rlregress.stack.locks import Lock, differences
from pytest_rlregress.trials import pytest_run
from pytest_rlregress.trials.document import Section, quote_command, redact, tabulate, unbroken
from pytest_rlregress.trials.pytest_run import TrialRun
from pytest_rlregress.trials.search import State
from pytest_rlregress.util import files
from pytest_rlregress.util.text import columns, join_some, plural
from pytest_rlregress.util.units import format_duration

#: The form of a trial's file: part of what tells requests from each other.
FORMAT = 6


@dataclass(frozen=True)
class TrialSummary:
    """A trial in one line."""

    label: str  # the candidate in words
    state: State
    verdict: str  # several where repeats differ; "" where there was no run
    seconds: float  # to build its environment and run its tests
    runs: int = 1
    reason: str = ""  # why it is unknown


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

    def summarize(self, state: State, reason: str = "", test: str = "") -> TrialSummary:
        """Summarize it in one line, by the verdicts of the test of that key, or of all of its tests."""
        verdicts = [one.verdict for run in self.runs for one in run.observations.values() if test in ("", one.test)]
        counts = Counter(verdicts).items()
        words = (word if test and count == len(verdicts) else f"{count} {word}" for word, count in counts)
        return TrialSummary(self.label, state, ", ".join(words), self.seconds, len(self.runs), reason)


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


class TrialRunner:
    """Tries candidates for the tests of one request.

    ``build`` builds the environment of a lock, or raises Unbuildable, or RequestError where the disk is full.
    ``timeout`` are the seconds that one run may take.
    """

    def __init__(
        self,
        build: Callable[[Lock], Environment],
        folder: TrialFolder,
        request: pytest_run.TrialRequest,
        progress: Progress,
        *,
        repeat: int,
        timeout: float,
    ) -> None:
        self._build, self._folder, self._request = build, folder, request
        self.progress, self._repeat, self._timeout = progress, repeat, timeout
        self._known = dict(folder.trials)
        self._seconds_before = sum(trial.seconds for trial in folder.trials.values())
        #: Every trial of this request, in the order in which they were asked for.
        self.trials: dict[str, Trial] = {}

    @property
    def seconds(self) -> float:
        """What all of it took until now, trials that are known from before included."""
        return self._seconds_before + self.progress.elapsed

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
            environment = self._build(lock)
        except Unbuildable as error:
            seconds = time.monotonic() - begun
            return Trial(candidate.label, trouble=str(error), build_seconds=seconds, conflict=error.conflict)
        built = time.monotonic() - begun
        run = partial(pytest_run.run_tests, environment.python, self._request, timeout=self._timeout)
        runs = tuple(run(say=self.progress.say) for _ in range(self._repeat))
        moved = (one for one in differences(candidate.base, lock) if one.name not in candidate.subjects)
        return Trial(candidate.label, lock, runs, "", built, tuple(map(str, moved)))


# -- how it is told ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunContext:
    """The Python, the platform and the packages that all trials had in common."""

    python: str
    platform: str  # ``Linux x86_64, glibc 2.39``
    hardware: str  # the profile and the devices
    held: Mapping[str, str] = field(default_factory=dict)  # versions of the stack's components that stayed the same
    left_out: tuple[str, ...] = ()  # what of this environment the trials' environments did not have, in words

    @classmethod
    def here(cls, hardware: str, held: Mapping[str, str] | None = None, left_out: tuple[str, ...] = ()) -> RunContext:
        """Describe this Python and this platform, and what was held fixed."""
        where = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
        return cls(platform.python_version(), where, hardware, held or {}, left_out)


def list_trials(tried: Sequence[TrialSummary], seconds: float) -> Section:
    """List every trial, in the order of the trying."""
    rows = [
        (str(number), one.label, one.state.value, one.verdict, f"{one.seconds:.1f}", one.reason)
        for number, one in enumerate(tried, 1)
    ]
    runs = plural(sum(one.runs for one in tried), "run")
    title = f"{plural(len(rows), 'trial')}, {runs}, {format_duration(seconds)} in all"
    return Section(title, tabulate(rows, ("", "candidate", "is", "verdict", "seconds", "why")), folded=True)


def list_where(title: str, context: RunContext) -> Section:
    """List where it was tried, and what was held fixed there."""
    rows = {"Python": context.python, "platform": context.platform, "hardware": context.hardware, **context.held}
    return Section(title, tabulate([*rows.items()]))


class Progress:
    """Reports on standard error: a line for every trial and every note; to a terminal also what is being done.

    Args:
        stream: Where instead of standard error.
        clock: Seconds, from any start.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream: Any = stream or getattr(sys.stderr, "as_it_is", sys.stderr)
        self._clock = clock
        self._begun, self._number = clock(), 0

    def say(self, text: str) -> None:
        """Write a line that stays: a note about an environment, a warning."""
        self.set_activity("")
        print(redact(text).rstrip("\n"), file=self._stream, flush=True)

    def set_activity(self, doing: str) -> None:
        """Show on a terminal, until the next line, what is being done; "": nothing."""
        if self._stream is not None and self._stream.isatty():  # None: it was closed
            self._stream.write(f"\r\x1b[K{f'{unbroken(doing)[: columns.get() - 5]} …' if doing else ''}")
            self._stream.flush()

    def report_known(self, trials: int) -> None:
        """Report how many trials are known from before."""
        if trials:
            self.say(f"{plural(trials, 'trial')} known from before, not tried again")

    def report_trial(self, one: TrialSummary, *, role: str = "", moved: Sequence[str] = ()) -> None:
        """Report a finished trial.

        Args:
            one: The trial.
            role: ``good end`` or ``bad end`` while these are proven.
            moved: The packages that had to move along.
        """
        self._number += 1
        why = one.reason if one.state is State.UNKNOWN else one.verdict
        found = f"{one.state.value} ({why})" if why else one.state.value
        if role and one.verdict:  # which of its tests is followed is not known yet
            found = one.verdict
        line = f"[{self._number}] {f'{role}, ' if role else ''}{one.label}: {found} in {format_duration(one.seconds)}"
        self.say(f"{line}\n    moved along: {join_some(moved)}" if moved else line)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begun

    def report_stop(self, command: Sequence[str]) -> None:
        """Say how an interrupted request is continued."""
        self.say(
            f"stopped after {plural(self._number, 'trial')}, {format_duration(self.elapsed)}; these are kept. "
            f"To go on from here:\n  {quote_command(command)}"
        )
