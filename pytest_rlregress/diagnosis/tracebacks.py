"""Assemble exceptions out of the lines of their tracebacks, and sentences out of the lines they are wrapped over."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_rlregress.diagnosis import patterns
from pytest_rlregress.diagnosis.events import Event
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.logs.signals import process_end

# How much is held of a log.
_SOURCES, _FRAMES, _MESSAGE_LINES = 1024, 400, 30
_UNFINISHED_AFTER = 30
# Say no more than that another process died, perhaps since it was told to: vLLM's API server, torchrun.
_CONSEQUENCES = {"EngineDeadError", "ChildFailedError"}
_IPYTHON_CODE = re.compile(r"-+> \[?\d+")


@dataclass
class _Source:
    """What one writer of a log is in the middle of."""

    started: Line | None = None  # of a traceback
    indent: int = 0
    is_rich: bool = False
    frames: list[str] = field(default_factory=list)
    unindented: int = 0  # lines since the last frame
    head: re.Match[str] | None = None  # of an exception whose message goes on
    message: list[Line] = field(default_factory=list)
    chain: list[Event] = field(default_factory=list)
    has_header: bool = False
    name: str | None = None  # of the exception, where the header has it
    chained: bool = False
    blank: bool = False
    recent: deque[tuple[Line, bool]] = field(default_factory=deque)


class Tracebacks:
    """Makes events of the lines of tracebacks, and of lines that are an event by their wording.

    Args:
        hinted: Whether a line has a part of a message that is an event by itself.
        is_event: Whether a line, wrapped over those that follow it, is an event by its message alone.
        emit: Takes a chain of events that is complete.
    """

    def __init__(
        self,
        hinted: Callable[[Line], bool],
        is_event: Callable[[tuple[Line, ...]], bool],
        emit: Callable[[list[Event]], None],
    ) -> None:
        self._hinted, self._is_event, self._emit = hinted, is_event, emit
        self._sources: dict[tuple[str, str, bool], _Source] = {}
        self._last: dict[str, _Source] = {}  # by process

    def take(self, line: Line) -> None:
        """Take a line."""
        self._take_line(self._source(line), line)

    def is_open(self, line: Line) -> bool:
        """Return whether a line's writer is in the middle of a traceback."""
        source = self._sources.get((line.process, line.level, line.stamped))
        return source is not None and source.started is not None

    def has_message(self, line: Line) -> bool:
        """Return whether a line's writer is in the middle of an exception's message."""
        source = self._sources.get((line.process, line.level, line.stamped)) or self._last.get(line.process)
        return source is not None and source.head is not None

    def end(self, keeps_named: bool = False) -> None:
        """End what is open: nothing follows, or nothing that belongs to it.

        Args:
            keeps_named: Not the tracebacks of writers that name themselves on every line.
        """
        for key, source in list(self._sources.items()):
            process, *_ = key
            if not (keeps_named and process and source.started and not source.head):
                self._finish(source)
                del self._sources[key]
                if self._last.get(process) is source:
                    del self._last[process]

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
                self.end()
            source = self._sources[key] = _Source()
        self._last[line.process] = source
        return source

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
            _start(source, line, header=text)
        elif frame := patterns.python_frame(text):
            if source.started is None:
                if source.blank:
                    self._finish(source)
                _start(source, line, header="")
            # The exception stands left of its frames, or beside them where the post begins with these.
            source.indent = len(text) - len(text.lstrip())
            if len(source.frames) < _FRAMES:
                source.frames.append(frame)
            source.unindented = 0
        elif source.started and self._take_in_traceback(source, line):
            pass
        else:
            self._take_outside(source, line)

    def _take_in_traceback(self, source: _Source, line: Line) -> bool:
        text = line.text
        if len(text) - len(text.lstrip()) > source.indent or (
            (source.is_rich and (line.boxed or text.lstrip()[:1] in "╰╭")) or _IPYTHON_CODE.match(text)
        ):
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
        exceptions = (*names, *patterns.known_bases(names))
        died = process_end(parts[0])  # "Command '…' died with <Signals.SIGFPE: 8>."
        outcome = Outcome(
            "failed",
            exceptions=exceptions,
            message="\n".join(parts)[: patterns.LONGEST],
            frames=tuple(source.frames),
            signal=died.signal if died else None,
        )
        first = [source.started] if source.started else []
        minor = not _CONSEQUENCES.isdisjoint(name.rpartition(".")[2] for name in names)
        source.chain.append(Event(outcome, (*first, *lines), tuple(parts), minor=minor))
        source.head, source.started, source.frames = None, None, []
        source.chained = source.blank = False

    def _end_traceback(self, source: _Source) -> None:
        """End a traceback that never came to its exception."""
        if source.started and source.frames:
            message, exceptions = (
                f"traceback without an end, last in {source.frames[-1]}",
                tuple(filter(None, [source.name])),
            )
            outcome = Outcome("failed", "call", exceptions, message, tuple(source.frames))
            source.chain.append(Event(outcome, (source.started,), minor=not source.has_header))
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
                return
        line = first[0]
        if patterns.is_error(line.text, line.level):
            outcome = Outcome("failed", message=line.text.strip())
            self._emit([Event(outcome, (line,), message_only=True, minor=True)])


def _start(source: _Source, line: Line, *, header: str) -> None:
    """Begin a traceback; one without a header begins with a frame."""
    source.started, source.frames, source.unindented, source.has_header = line, [], 0, bool(header)
    source.indent, source.is_rich = len(header) - len(header.lstrip()), bool(patterns.RICH_HEADER.match(header))
    found = patterns.TRACEBACK_HEADER.match(header)
    source.name = found["name"] if found else None
    source.chained = source.blank = False
