"""Report progress on standard error: a plain line for every trial and every note."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from pytest_rlregress.commands.trials.summaries import TrialSummary
from pytest_rlregress.commands.trials.text import quote_command, redact
from pytest_rlregress.commands.trials.trial import State
from pytest_rlregress.util.text import plural
from pytest_rlregress.util.units import format_duration

_PLAIN = str.maketrans({"…": "...", "·": "-"})  # where standard error is not Unicode


@dataclass(frozen=True)
class ProgressWindow:
    """What is left to be searched, whether releases, commits or a set of packages.

    Attributes:
        text: In words: ``4.57.6 … 5.0.0``, ``torch, vllm and 9 more``.
        left: Candidates in it that are not tried yet.
        runs: About how many of them will have to be.
    """

    text: str
    left: int
    runs: int


def join_ends(labels: Sequence[str]) -> str:
    """Name a window of candidates in their order, by its ends."""
    return " … ".join(dict.fromkeys((labels[0], labels[-1])))


def join_some(names: Sequence[str]) -> str:
    """Name a window of candidates without an order, by some of them."""
    return ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)


class Progress:
    """Reports what is going on. Its lines may come from several threads.

    Args:
        stream: Where it is said: standard error. Only to a terminal is also said what is being done right now.
        clock: Seconds, from any start.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream or sys.stderr, clock
        self._begun, self._seconds, self._number = clock(), list[float](), 0
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._doing, self._lock = "", threading.Lock()

    def say(self, text: str) -> None:
        """Write a line that stays: a note about an environment, a warning."""
        with self._lock:
            self._write("".join(f"{line}\n" for line in redact(text).rstrip("\n").split("\n")))

    def set_activity(self, doing: str) -> None:
        """Show on a terminal what is being done, such as ``building transformers 5.0.0``; "": nothing."""
        with self._lock:
            self._doing = f"{' '.join(redact(doing).split())} …" if doing else ""
            self._write("")

    def report_known(self, trials: int) -> None:
        """Report how many trials are known from before."""
        if trials:
            self.say(f"{plural(trials, 'trial')} known from before, not tried again")

    def report_trial(
        self, one: TrialSummary, window: ProgressWindow | None = None, *, role: str = "", moved: Sequence[str] = ()
    ) -> None:
        """Report a finished trial, and what is left.

        Args:
            one: The trial.
            window: What is left to be searched.
            role: ``good end`` or ``bad end`` while these are proven.
            moved: The packages that had to move along.
        """
        self._number += 1
        self._seconds.append(one.seconds)
        why = one.reason if one.state is State.UNKNOWN else one.verdict
        found = f"{one.state.value} ({why})" if why else one.state.value
        if role and one.verdict:  # which of its tests is followed is not known yet
            found = one.verdict
        line = f"[{self._number}] {f'{role}, ' if role else ''}{one.label}: {found} in {format_duration(one.seconds)}"
        self._doing = ""
        line = f"{line} · {self._left(window)}" if window else line
        self.say(f"{line}\n    moved along: {join_some(moved)}" if moved else line)

    def _left(self, window: ProgressWindow) -> str:
        """The window, how much is left of it, the time so far and the estimate: the median trial's, for each run."""
        parts = [window.text, f"{window.left} left"]
        if window.runs:
            parts.append(f"about {plural(window.runs, 'run')}")
        parts.append(f"{format_duration(self.elapsed)} so far")
        if window.runs:
            parts.append(f"about {format_duration(round(statistics.median(self._seconds) * window.runs))} to go")
        return ", ".join(parts)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begun

    def report_stop(self, command: Sequence[str]) -> None:
        """Say how an interrupted request is continued."""
        self._doing = ""
        self.say(
            f"stopped after {plural(self._number, 'trial')}, {format_duration(self.elapsed)}; these are kept. "
            f"To go on from here:\n  {quote_command(command)}"
        )

    def _write(self, lines: str) -> None:
        if self._live:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
            lines = f"\r\x1b[K{lines}{self._doing[: width - 1]}"
        encoding = self._stream.encoding or "utf-8"
        try:
            lines.encode(encoding)
        except UnicodeEncodeError:
            lines = lines.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
        self._stream.write(lines)
        self._stream.flush()
