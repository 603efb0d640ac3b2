"""From the lines of a log to what happened: exceptions with their frames, crashes with their stacks, error lines."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pytest_rlregress.diagnose import shapes
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.verdicts import Outcome

# How much is held of a log.
_SOURCES, _FRAMES, _MESSAGE_LINES, _CONTEXT_LINES = 64, 400, 30, 60
# A crash and what else is said of it: abort's reason, glog's line, Python's, the stack.
_CRASH_LINES = 40
_UNFINISHED_AFTER = 30


@dataclass(frozen=True)
class Event:
    """Something that happened in a log.

    Attributes:
        outcome: What happened, as of a test.
        lines: The lines that say so, at most some.
        messages: What the message may have been; not all lines after an exception are its own.
        bare: A line that nothing but its wording makes an event.
    """

    outcome: Outcome
    lines: tuple[Line, ...]
    messages: tuple[str, ...] = ()
    bare: bool = False

    @property
    def what(self) -> str:
        """A headline."""
        name = next(iter(self.outcome.exceptions), self.outcome.signal)
        said = next(filter(None, self.messages), self.outcome.message)
        return ": ".join(filter(None, (name, said)))


#: Exceptions that one led to another, the first first; or a single event.
Chain = tuple[Event, ...]


@dataclass
class _Source:
    """What one writer is in the middle of."""

    started: Line | None = None  # of a traceback
    indent: int = 0
    frames: list[str] = field(default_factory=list)
    others: int = 0
    head: re.Match[str] | None = None  # of an exception whose message goes on
    message: list[Line] = field(default_factory=list)
    chain: list[Event] = field(default_factory=list)
    headed: bool = False
    linked: bool = False
    blank: bool = False
    recent: deque[tuple[Line, bool]] = field(default_factory=deque)


@dataclass
class _Crash:
    signal: str | None
    lines: list[Line]
    said: list[str]
    last: int
    frames: list[str] = field(default_factory=list)


class Assembler:
    """Takes the lines of a log, gives the chains of events in it.

    Args:
        hinted: Whether a line has a part of a wording that is an event by itself.
        worded: Whether the first of some lines, wrapped over the others, is an event by its wording alone.
    """

    def __init__(self, hinted: Callable[[Line], bool], worded: Callable[[tuple[Line, ...]], bool]) -> None:
        self._hinted, self._worded = hinted, worded
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
        if not self._of_a_crash(line):
            self._take(self._source(line), line)
        while self._waiting and self._waiting[0][0] <= self._seen:
            yield self._in_context(self._waiting.popleft()[1])

    def end(self) -> Iterator[Chain]:
        """Nothing follows, or nothing that belongs to what came before."""
        for source in self._sources.values():
            self._finish(source)
        self._end_crash()
        while self._waiting:
            yield self._in_context(self._waiting.popleft()[1])
        self._sources.clear()
        self._last.clear()
        self._context.clear()

    def _source(self, line: Line) -> _Source:
        """What a line belongs to; one without a level may go on with a record that has one."""
        key = (line.process, line.level, line.stamped)
        source = self._sources.get(key)
        last = self._last.get(line.process)
        busy = source and (source.started or source.head)
        if last and not line.level and not busy and (last.head or (last.recent and not shapes.is_structure(line.text))):
            return last
        if source is None:
            if len(self._sources) >= _SOURCES:
                for other in self._sources.values():
                    self._finish(other)
                self._sources.clear()
                self._last.clear()
            source = self._sources[key] = _Source()
        self._last[line.process] = source
        return source

    # -- crashes: what processes with no prefix, or another, say of the same one belongs together --------------------

    def _of_a_crash(self, line: Line) -> bool:
        crash = self._crash
        if crash and line.number > crash.last + _CRASH_LINES:
            self._end_crash()
            crash = None
        found = shapes.CRASH.match(line.text)
        if found:
            signal = shapes.signal_of(found)
            if crash and crash.signal and signal and crash.signal != signal:
                self._end_crash()
                crash = None
            if crash is None:
                crash = self._crash = _Crash(signal, [], [], line.number)
            crash.signal = crash.signal or signal
            crash.said.append(line.text.strip())
        elif crash is None or not self._frame_of_crash(crash, line):
            return False
        crash.last = line.number
        if len(crash.lines) < _MESSAGE_LINES:
            crash.lines.append(line)
        return True

    def _frame_of_crash(self, crash: _Crash, line: Line) -> bool:
        source = self._sources.get((line.process, line.level, line.stamped))
        if source and source.started:
            return False
        frame, native = shapes.FRAME.match(line.text), shapes.NATIVE.match(line.text)
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
            outcome = Outcome("crashed", message=" ".join(crash.said), frames=tuple(crash.frames), signal=crash.signal)
            self._give([Event(outcome, tuple(crash.lines))])

    # -- exceptions ----------------------------------------------------------------------------------------------------

    def _take(self, source: _Source, line: Line) -> None:
        text = line.text
        if source.head:
            if text.strip() and not shapes.is_structure(text) and len(source.message) < _MESSAGE_LINES:
                source.message.append(line)
                return
            self._end_message(source)
        if not text.strip():
            source.blank = True
        elif shapes.LINK.match(text):
            source.linked = True
        elif shapes.is_header(text):
            self._end_traceback(source)
            if not source.linked:
                self._finish(source)
            _start(source, line, len(text) - len(text.lstrip()), headed=True)
        elif frame := shapes.FRAME.match(text):
            if source.started is None:
                if source.blank:
                    self._finish(source)
                _start(source, line, 1, headed=False)
            if len(source.frames) < _FRAMES:
                name, called = frame["file"] or frame["rich"], frame["name"] or frame["called"]
                source.frames.append(f"{name}:{called}")
            source.others = 0
        elif source.started and self._in_traceback(source, line):
            pass
        else:
            self._outside(source, line)

    def _in_traceback(self, source: _Source, line: Line) -> bool:
        text = line.text
        if len(text) - len(text.lstrip()) > source.indent or text[:1] in "│╰╭":
            return True
        if head := shapes.ENDS.match(text):
            source.head, source.message = head, [line]
            return True
        source.others += 1
        if source.others > _UNFINISHED_AFTER:
            self._end_traceback(source)
        return False

    def _outside(self, source: _Source, line: Line) -> None:
        if source.started is None:
            self._finish(source, words=False)
        head = shapes.ALONE.match(line.text) or shapes.CUDA.match(line.text)
        if head is None and ("Error" in line.text or "Exception" in line.text):
            led = shapes.LED.match(line.text)
            head = led if led and shapes.tells(led["lead"], line.level) else None
        if head:
            self._words(source)
            source.head, source.message = head, [line]
            return
        source.recent.append((line, self._hinted(line)))
        if len(source.recent) >= shapes.WRAPPED:
            self._word(source)

    def _end_message(self, source: _Source) -> None:
        head, lines = source.head, source.message
        assert head is not None
        groups = head.groupdict()
        parts = [(groups["message"] or "").strip(), *(line.text.strip() for line in lines[1:])]
        names = tuple(name for name in (groups.get("name"), groups.get("inner")) if name)
        exceptions = (*names, *shapes.bases(names))
        outcome = Outcome("failed", "call", exceptions, " ".join(filter(None, parts)), tuple(source.frames))
        first = [source.started] if source.started else []
        source.chain.append(Event(outcome, (*first, *lines), shapes.unwrapped(parts)))
        source.head, source.started, source.frames = None, None, []
        source.linked = source.blank = False

    def _end_traceback(self, source: _Source) -> None:
        """Of one that never came to its exception."""
        if source.started and source.headed and source.frames:
            message = f"traceback without an end, last in {source.frames[-1]}"
            source.chain.append(
                Event(Outcome("failed", message=message, frames=tuple(source.frames)), (source.started,))
            )
        source.started, source.frames = None, []

    def _finish(self, source: _Source, words: bool = True) -> None:
        if source.head:
            self._end_message(source)
        self._end_traceback(source)
        if words:
            self._words(source)
        if source.chain:
            self._give(source.chain)
            source.chain = []

    # -- lines that are an event by their wording ----------------------------------------------------------------------

    def _words(self, source: _Source) -> None:
        while source.recent:
            self._word(source)

    def _word(self, source: _Source) -> None:
        first = source.recent.popleft()
        if first[1] or any(hinted for _, hinted in source.recent):
            lines = (first[0], *(line for line, _ in source.recent))
            message = " ".join(line.text.strip() for line in lines)
            if self._worded(lines):
                self._give([Event(Outcome("failed", message=message), lines, bare=True)])

    # -- giving --------------------------------------------------------------------------------------------------------

    def _give(self, chain: list[Event]) -> None:
        self._waiting.append((self._seen + _CONTEXT_LINES // 2, tuple(chain)))

    def _in_context(self, chain: Chain) -> Chain:
        log = "\n".join(line.printed for line in self._context)
        return tuple(replace(event, outcome=replace(event.outcome, log=log)) for event in chain)


def _start(source: _Source, line: Line, indent: int, *, headed: bool) -> None:
    source.started, source.indent, source.frames, source.others, source.headed = line, indent, [], 0, headed
    source.linked = source.blank = False
