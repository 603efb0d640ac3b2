"""Assemble the lines of a log into events: exceptions with their frames, crashes with their stacks, error lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pytest_rlregress.diagnose import patterns
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.verdicts import Outcome

# How much is held of a log.
_SOURCES, _FRAMES, _MESSAGE_LINES, _CONTEXT_LINES = 64, 400, 30, 60
# A crash takes several lines: abort's reason, glog's line, Python's, the stack.
_CRASH_LINES = 40
_UNFINISHED_AFTER = 30


@dataclass(frozen=True)
class Event:
    """Something that happened in a log.

    Attributes:
        outcome: What happened, as of a test.
        lines: The lines that say so, at most some.
        messages: What the message may have been; not all lines after an exception are its own.
        message_only: Whether nothing but the wording of a line makes it an event.
    """

    outcome: Outcome
    lines: tuple[Line, ...]
    messages: tuple[str, ...] = ()
    message_only: bool = False

    @property
    def headline(self) -> str:
        """Exception or signal, and message."""
        name = next(iter(self.outcome.exceptions), self.outcome.signal)
        message = next(filter(None, self.messages), self.outcome.message)
        return ": ".join(filter(None, (name, message)))


#: Exceptions that one led to another, the first first; or a single event.
Chain = tuple[Event, ...]


@dataclass
class _Source:
    """What one writer of a log is in the middle of."""

    started: Line | None = None  # of a traceback
    indent: int = 0
    frames: list[str] = field(default_factory=list)
    unindented: int = 0  # lines since the last frame
    head: re.Match[str] | None = None  # of an exception whose message goes on
    message: list[Line] = field(default_factory=list)
    chain: list[Event] = field(default_factory=list)
    has_header: bool = False
    chained: bool = False
    blank: bool = False
    recent: deque[tuple[Line, bool]] = field(default_factory=deque)


@dataclass
class _Crash:
    signal: str | None
    lines: list[Line]
    texts: list[str]
    last: int
    frames: list[str] = field(default_factory=list)


class Assembler:
    """Makes chains of events out of the lines of a log.

    Args:
        hinted: Whether a line has a part of a message that is an event by itself.
        is_event: Whether a line, wrapped over those that follow it, is an event by its message alone.
    """

    def __init__(self, hinted: Callable[[Line], bool], is_event: Callable[[tuple[Line, ...]], bool]) -> None:
        self._hinted, self._is_event = hinted, is_event
        self._sources: dict[tuple[str, str, bool], _Source] = {}
        self._last: dict[str, _Source] = {}  # by process
        self._crash: _Crash | None = None
        self._context: deque[Line] = deque(maxlen=_CONTEXT_LINES)
        self._number = self._seen = 0
        self._waiting: deque[tuple[int, Chain]] = deque()  # for the context that follows

    def feed(self, line: Line) -> Iterator[Chain]:
        """Take a line."""
        if line.number > self._number + 1:
            yield from self.end()
        self._number = line.number
        if line.bar:
            return
        self._seen += 1
        self._context.append(line)
        if not self._take_crash_line(line):
            self._take_line(self._source(line), line)
        while self._waiting and self._waiting[0][0] <= self._seen:
            yield self._with_context(self._waiting.popleft()[1])

    def end(self) -> Iterator[Chain]:
        """End what is open: nothing follows, or nothing that belongs to it."""
        self._finish_all()
        self._end_crash()
        while self._waiting:
            yield self._with_context(self._waiting.popleft()[1])
        self._context.clear()

    def _source(self, line: Line) -> _Source:
        """Return what a line belongs to; one without a level may go on with a record that has one."""
        key = (line.process, line.level, line.stamped)
        source = self._sources.get(key)
        last = self._last.get(line.process)
        busy = source and (source.started or source.head)
        if (
            last
            and not line.level
            and not busy
            and (last.head or (last.recent and not patterns.ends_message(line.text)))
        ):
            return last
        if source is None:
            if len(self._sources) >= _SOURCES:
                self._finish_all()
            source = self._sources[key] = _Source()
        self._last[line.process] = source
        return source

    # -- crashes: lines about the same one belong together, whatever their prefix --------------------------------------

    def _take_crash_line(self, line: Line) -> bool:
        crash = self._crash
        if crash and line.number > crash.last + _CRASH_LINES:
            self._end_crash()
            crash = None
        found = patterns.CRASH_LINE.match(line.text)
        if found:
            signal = patterns.signal_name(found)
            if crash and crash.signal and signal and crash.signal != signal:
                self._end_crash()
                crash = None
            if crash is None:
                crash = self._crash = _Crash(signal, [], [], line.number)
            crash.signal = crash.signal or signal
            crash.texts.append(line.text.strip())
        elif crash is None or not self._take_crash_frame(crash, line):
            return False
        crash.last = line.number
        if len(crash.lines) < _MESSAGE_LINES:
            crash.lines.append(line)
        return True

    def _take_crash_frame(self, crash: _Crash, line: Line) -> bool:
        source = self._sources.get((line.process, line.level, line.stamped))
        if source and source.started:
            return False
        frame, native = patterns.PYTHON_FRAME.match(line.text), patterns.NATIVE_FRAME.match(line.text)
        if frame and (not frame["comma"] or frame["file"].startswith("<")):
            name = f"{frame['file']}:{frame['name']}"
        elif native:
            name = f"{native['library'] or native['place'] or '?'}:{native['symbol'] or native['called']}"
        else:
            return False
        if len(crash.frames) < _FRAMES:
            crash.frames.append(name)
        return True

    def _end_crash(self) -> None:
        if self._crash:
            crash, self._crash = self._crash, None
            outcome = Outcome("crashed", message=" ".join(crash.texts), frames=tuple(crash.frames), signal=crash.signal)
            self._emit([Event(outcome, tuple(crash.lines))])

    # -- exceptions ----------------------------------------------------------------------------------------------------

    def _take_line(self, source: _Source, line: Line) -> None:
        text = line.text
        if source.head:
            if text.strip() and not patterns.ends_message(text) and len(source.message) < _MESSAGE_LINES:
                source.message.append(line)
                return
            self._end_message(source)
        if not text.strip():
            source.blank = True
        elif patterns.CHAINING_LINE.match(text):
            source.chained = True
        elif patterns.starts_traceback(text):
            self._end_traceback(source)
            if not source.chained:
                self._finish(source)
            _start(source, line, len(text) - len(text.lstrip()), has_header=True)
        elif frame := patterns.PYTHON_FRAME.match(text):
            if source.started is None:
                if source.blank:
                    self._finish(source)
                _start(source, line, 1, has_header=False)
            if len(source.frames) < _FRAMES:
                name, called = frame["file"] or frame["rich"], frame["name"] or frame["called"]
                source.frames.append(f"{name}:{called}")
            source.unindented = 0
        elif source.started and self._take_in_traceback(source, line):
            pass
        else:
            self._take_outside(source, line)

    def _take_in_traceback(self, source: _Source, line: Line) -> bool:
        text = line.text
        if len(text) - len(text.lstrip()) > source.indent or text[:1] in "│╰╭":
            return True
        if head := patterns.LAST_LINE.match(text):
            source.head, source.message = head, [line]
            return True
        source.unindented += 1
        if source.unindented > _UNFINISHED_AFTER:
            self._end_traceback(source)
        return False

    def _take_outside(self, source: _Source, line: Line) -> None:
        if source.started is None:
            self._finish(source, messages_too=False)
        head = patterns.EXCEPTION_LINE.match(line.text) or patterns.CUDA_ERROR.match(line.text)
        if head is None and ("Error" in line.text or "Exception" in line.text):
            found = patterns.EXCEPTION_AFTER_TEXT.match(line.text)
            head = found if found and patterns.is_report(found["lead"], line.level) else None
        if head:
            self._check_all_recent(source)
            source.head, source.message = head, [line]
            return
        source.recent.append((line, self._hinted(line)))
        if len(source.recent) >= patterns.WRAPPED_LINES:
            self._check_recent(source)

    def _end_message(self, source: _Source) -> None:
        head, lines = source.head, source.message
        assert head is not None
        groups = head.groupdict()
        parts = [(groups["message"] or "").strip(), *(line.text.strip() for line in lines[1:])]
        names = tuple(name for name in (groups.get("name"), groups.get("inner")) if name)
        exceptions = (*names, *patterns.builtin_bases(names))
        outcome = Outcome("failed", "call", exceptions, " ".join(filter(None, parts)), tuple(source.frames))
        first = [source.started] if source.started else []
        source.chain.append(Event(outcome, (*first, *lines), patterns.joined_lines(parts)))
        source.head, source.started, source.frames = None, None, []
        source.chained = source.blank = False

    def _end_traceback(self, source: _Source) -> None:
        """End a traceback that never came to its exception."""
        if source.started and source.has_header and source.frames:
            message = f"traceback without an end, last in {source.frames[-1]}"
            source.chain.append(
                Event(Outcome("failed", message=message, frames=tuple(source.frames)), (source.started,))
            )
        source.started, source.frames = None, []

    def _finish(self, source: _Source, messages_too: bool = True) -> None:
        if source.head:
            self._end_message(source)
        self._end_traceback(source)
        if messages_too:
            self._check_all_recent(source)
        if source.chain:
            self._emit(source.chain)
            source.chain = []

    def _finish_all(self) -> None:
        for source in self._sources.values():
            self._finish(source)
        self._sources.clear()
        self._last.clear()

    # -- lines that are an event by their message ----------------------------------------------------------------------

    def _check_all_recent(self, source: _Source) -> None:
        while source.recent:
            self._check_recent(source)

    def _check_recent(self, source: _Source) -> None:
        first = source.recent.popleft()
        if first[1] or any(hinted for _, hinted in source.recent):
            lines = (first[0], *(line for line, _ in source.recent))
            message = " ".join(line.text.strip() for line in lines)
            if self._is_event(lines):
                self._emit([Event(Outcome("failed", message=message), lines, message_only=True)])

    # -- giving --------------------------------------------------------------------------------------------------------

    def _emit(self, chain: list[Event]) -> None:
        self._waiting.append((self._seen + _CONTEXT_LINES // 2, tuple(chain)))

    def _with_context(self, chain: Chain) -> Chain:
        log = "\n".join(line.printed for line in self._context)
        return tuple(replace(event, outcome=replace(event.outcome, log=log)) for event in chain)


def _start(source: _Source, line: Line, indent: int, *, has_header: bool) -> None:
    source.started, source.indent, source.frames, source.unindented, source.has_header = line, indent, [], 0, has_header
    source.chained = source.blank = False
