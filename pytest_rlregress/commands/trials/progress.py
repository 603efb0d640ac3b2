"""Report progress on standard error: a plain line for every trial and every note."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from pytest_rlregress.commands.trials.document import quote_command, redact
from pytest_rlregress.commands.trials.trial import State, TrialSummary
from pytest_rlregress.util.text import plural
from pytest_rlregress.util.units import format_duration

_PLAIN = str.maketrans({"…": "..."})  # where standard error is not Unicode


def join_some(names: Sequence[str]) -> str:
    """Name the first three of some, and count the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Progress:
    """Reports what is going on. Its lines may come from several threads.

    Args:
        stream: Where it is said: standard error. Only to a terminal is also said what is being done right now.
        clock: Seconds, from any start.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream or sys.stderr, clock
        self._begun, self._number = clock(), 0
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
        self._doing = ""
        self.say(f"{line}\n    moved along: {join_some(moved)}" if moved else line)

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
