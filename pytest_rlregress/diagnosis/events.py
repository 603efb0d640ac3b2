"""What happened in a log: an exception, a line that says by its wording that something failed, or a crash, which is put
together out of what handlers and launchers say, and the stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_rlregress.diagnosis import patterns
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.logs.signals import STOPPING, ProcessEnd, process_end

# A crash takes several lines: abort's reason, glog's line, Python's, the stack.
_CRASH_LINES, _LINES, _FRAMES = 40, 30, 400


@dataclass(frozen=True)
class Event:
    """Something that happened in a log.

    Attributes:
        outcome: What happened, as of a test.
        lines: The lines that say so, at most some.
        said: The lines of an exception's message; not all of them are its own.
        message_only: Whether nothing but the wording of a line makes it an event.
        minor: Whether it is no more than an exit status, an error without a class or a consequence of another
            process' death: what other events explain.
    """

    outcome: Outcome
    lines: tuple[Line, ...]
    said: tuple[str, ...] = ()
    message_only: bool = False
    minor: bool = False

    @property
    def headline(self) -> str:
        """Exception or signal, and message."""
        name = next(iter(self.outcome.exceptions), self.outcome.signal)
        message = next(filter(None, self.said), self.outcome.message)
        return ": ".join(filter(None, (name, message)))


#: Exceptions that one led to another, the first first; or a single event.
Chain = tuple[Event, ...]


def headline(chain: Chain) -> str:
    """Say in a line what came of a chain, and what it began with."""
    last, first = chain[-1].headline, chain[0].headline
    return last if last == first else f"{last}, after {first}"


@dataclass
class _Crash:
    signal: str | None
    last: int
    own: bool = False
    lines: list[Line] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)


class Crashes:
    """Makes events of the lines about crashes: they belong together whatever their prefix.

    Args:
        emit: Takes an event that is complete.
    """

    def __init__(self, emit: Callable[[list[Event]], None]) -> None:
        self._emit = emit
        self._crash: _Crash | None = None

    def take(self, line: Line, in_traceback: bool, in_message: bool) -> bool:
        """Take a line, if it belongs to a crash.

        Args:
            line: The next of the log.
            in_traceback: Whether its writer is in the middle of a traceback.
            in_message: Whether its writer is in the middle of an exception's message.
        """
        if self._crash and line.number > self._crash.last + _CRASH_LINES:
            self.end()
        found = process_end(line.text)
        if found and not found.own and (in_traceback or not patterns.is_told(line.text, found.lead, line.level)):
            found = None
        if found and not found.own and (found.signal is None or found.signal in STOPPING):
            if in_message:
                return False
            outcome = Outcome("crashed", message=line.text.strip(), signal=found.signal)
            self._emit([Event(outcome, (line,), minor=True)])
            return True
        if found:
            self._take_death(found, line)
        elif in_traceback or self._crash is None or not self._take_frame(self._crash, line.text):
            return False
        assert self._crash
        self._crash.last = line.number
        if len(self._crash.lines) < _LINES:
            self._crash.lines.append(line)
        return True

    def _take_death(self, found: ProcessEnd, line: Line) -> None:
        crash = self._crash
        if crash and crash.signal and found.signal and crash.signal != found.signal:
            self.end()
            crash = None
        if crash is None:
            crash = self._crash = _Crash(found.signal, line.number)
        crash.signal = crash.signal or found.signal
        crash.own = crash.own or found.own
        crash.texts.append(line.text.strip())
        if found.library:
            crash.frames.append(f"{found.library}:?")

    def _take_frame(self, crash: _Crash, text: str) -> bool:
        name = patterns.crash_frame(text)
        if name and len(crash.frames) < _FRAMES:
            crash.frames.append(name)
        return bool(name)

    def end(self) -> None:
        """End the crash that is open."""
        if self._crash:
            crash, self._crash = self._crash, None
            outcome = Outcome("crashed", message=" ".join(crash.texts), frames=tuple(crash.frames), signal=crash.signal)
            self._emit([Event(outcome, tuple(crash.lines), minor=not crash.own)])
