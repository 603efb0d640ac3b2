"""Put the lines of a log together to events: exceptions with their tracebacks, crashes with what handlers and launchers
say of them, and lines that say by their wording that something failed, which may be wrapped."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pytest_rlregress.diagnosis import patterns
from pytest_rlregress.diagnosis.reader import Search, relevant_lines
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.signatures import Outcome, Signature
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.logs.signals import STOPPING, process_end

# How much is held of a log.
_WRITERS, _FRAMES, _LINES, _CONTEXT_LINES = 1024, 400, 30, 60
# Lines that a sentence may be wrapped over.
_WRAPPED_LINES = 10
# A crash takes several lines: abort's reason, glog's line, Python's, the stack.
_CRASH_LINES = 40
# So many lines of a traceback may follow its last frame, before it is held for cut off.
_UNFINISHED_AFTER = 30
# Where hundreds of ranks print one traceback line by line, so many lines of source are passed over between two frames.
_BRIDGED_LINES = 1000


@dataclass(frozen=True)
class Event:
    """Something that happened in a log.

    Attributes:
        outcome: What happened, as of a test.
        lines: The lines that say so, at most some.
        said: The lines of an exception's message; not all of them are its own.
        bears: The signatures that it bears, each with its failure.
        message_only: Whether nothing but the wording of a line makes it an event.
        minor: Whether it is no more than an exit status, an error without a class or a consequence of another
            process' death: what other events explain.
    """

    outcome: Outcome
    lines: tuple[Line, ...]
    said: tuple[str, ...] = ()
    bears: tuple[tuple[Failure, Signature], ...] = ()
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


def read_events(blocks: Iterable[bytes], search: Search) -> Iterator[Chain]:
    """Read the chains of events in a log, given as blocks of whole lines; the search keeps the clues that it finds."""
    return _Assembler(search).read(relevant_lines(blocks, search))


@dataclass
class _Traceback:
    """A traceback that has not come to its exception."""

    first: Line
    header: str  # "" where the post begins with a frame
    indent: int  # the exception stands left of its frames, or beside them where there is no header
    frames: list[str] = field(default_factory=list)
    unindented: int = 0  # lines since the last frame


@dataclass
class _Writer:
    """The unfinished events of one writer of a log."""

    traceback: _Traceback | None = None
    head: re.Match[str] | None = None  # of an exception whose message goes on
    message: list[Line] = field(default_factory=list)
    chain: list[Event] = field(default_factory=list)
    chained: bool = False
    blank: bool = False
    recent: deque[Line] = field(default_factory=deque)  # a sentence may be wrapped over them

    def begin_traceback(self, line: Line, header: str) -> _Traceback:
        """Begin a traceback."""
        self.traceback = _Traceback(line, header, patterns.measure_indent(header))
        self.chained = self.blank = False
        return self.traceback

    def end_message(self) -> None:
        """Make an event of the exception whose message is at its end."""
        if self.head is None:
            return
        groups = self.head.groupdict()
        said = ((groups["message"] or "").strip(), *(line.text.strip() for line in self.message[1:]))
        names = tuple(name for name in (groups.get("name"), groups.get("inner")) if name)
        died = process_end(said[0])  # "Command '…' died with <Signals.SIGFPE: 8>."
        outcome = Outcome(
            "failed",
            exceptions=(*names, *patterns.known_bases(names)),
            message="\n".join(said)[: patterns.LONGEST],
            frames=tuple(self.traceback.frames) if self.traceback else (),
            signal=died.signal if died else None,
        )
        first = [self.traceback.first] if self.traceback else []
        self.chain.append(Event(outcome, (*first, *self.message), said, minor=patterns.is_consequence(names)))
        self.head = self.traceback = None
        self.chained = self.blank = False

    def end_traceback(self) -> None:
        """Make an event of a traceback that never came to its exception."""
        if (begun := self.traceback) and begun.frames:
            named = patterns.TRACEBACK_HEADER.match(begun.header)
            exceptions = (named["name"],) if named and named["name"] else ()
            message = f"traceback without an end, last in {begun.frames[-1]}"
            outcome = Outcome("failed", exceptions=exceptions, message=message, frames=tuple(begun.frames))
            self.chain.append(Event(outcome, (begun.first,), minor=not begun.header))
        self.traceback = None


@dataclass
class _Crash:
    """What handlers and launchers said of one crash: it belongs together whatever its prefix."""

    signal: str | None = None
    last: int = 0  # number of its last line
    own: bool = False
    lines: list[Line] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)


def _is_wrapper(event: Event, later: list[Event]) -> bool:
    """Return whether an exception only passes on one that follows: Ray prints ``RayTaskError(X)``, then X's own end."""
    name, *inner = event.outcome.exceptions[:2] or ("",)
    if name.rpartition(".")[2] != "RayTaskError" or not inner:
        return False
    causes = {kind.rpartition(".")[2] for one in later for kind in one.outcome.exceptions[:1]}
    return inner[0].rpartition(".")[2] in causes


class _Assembler:
    """Makes chains of events out of the lines of a log."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._writers: dict[tuple[str, str, bool], _Writer] = {}
        self._last: dict[str, _Writer] = {}  # by process
        self._crash: _Crash | None = None
        self._context: deque[Line] = deque(maxlen=_CONTEXT_LINES)
        self._seen = 0
        self._waiting: deque[tuple[int, list[Event]]] = deque()  # for the context that follows

    def read(self, lines: Iterable[Line]) -> Iterator[Chain]:
        """Yield the chains of all the lines."""
        number = 0
        for line in lines:
            passed_over, number = line.number - number - 1, line.number
            if passed_over > 0:
                yield from self._end(keeps_named=passed_over <= _BRIDGED_LINES)
            if line.bar:
                continue
            self._seen += 1
            self._context.append(line)
            if not self._take_in_crash(line):
                self._take(self._find_writer(line), line)
            while self._waiting and self._waiting[0][0] <= self._seen:
                yield self._next()
        yield from self._end()

    def _end(self, keeps_named: bool = False) -> Iterator[Chain]:
        """End what is open; ``keeps_named`` not the tracebacks of writers that name themselves on every line."""
        self._end_writers(keeps_named)
        self._end_crash()
        while self._waiting:
            yield self._next()
        self._context.clear()

    def _emit(self, chain: list[Event]) -> None:
        """Empty a chain into those that wait for the lines behind them."""
        if chain:
            self._waiting.append((self._seen + _CONTEXT_LINES // 2, [*chain]))
            chain.clear()

    def _next(self) -> Chain:
        """Return the next chain; the lines around it are the log that its events' signatures are looked for in."""
        _, chain = self._waiting.popleft()
        log = "\n".join(line.printed for line in self._context)
        return tuple(
            event
            if event.message_only or _is_wrapper(event, chain[number + 1 :])
            else replace(event, bears=self._search.match(replace(event.outcome, log=log)))
            for number, event in enumerate(chain)
        )

    def _take_in_crash(self, line: Line) -> bool:
        """Take a line, if it belongs to a crash."""
        writer, last = self._writers.get((line.process, line.level, line.stamped)), self._last.get(line.process)
        in_traceback = writer is not None and writer.traceback is not None
        if self._crash and line.number > self._crash.last + _CRASH_LINES:
            self._end_crash()
        crash, found = self._crash, patterns.find_process_end(line, in_traceback)
        if found and not found.own and (found.signal is None or found.signal in STOPPING):
            if (current := writer or last) and current.head:  # in the middle of an exception's message
                return False
            outcome = Outcome("crashed", message=line.text.strip(), signal=found.signal)
            self._emit([Event(outcome, (line,), minor=True)])
            return True
        if found:
            if crash and crash.signal and found.signal and crash.signal != found.signal:
                self._end_crash()
            crash = self._crash = self._crash or _Crash()
            crash.signal = crash.signal or found.signal
            crash.own = crash.own or found.own
            crash.texts.append(line.text.strip())
            if found.library:
                crash.frames.append(f"{found.library}:?")
        elif in_traceback or crash is None or not (frame := patterns.crash_frame(line.text)):
            return False
        elif len(crash.frames) < _FRAMES:
            crash.frames.append(frame)
        crash.last = line.number
        if len(crash.lines) < _LINES:
            crash.lines.append(line)
        return True

    def _end_crash(self) -> None:
        if crash := self._crash:
            outcome = Outcome("crashed", message=" ".join(crash.texts), frames=tuple(crash.frames), signal=crash.signal)
            self._emit([Event(outcome, tuple(crash.lines), minor=not crash.own)])
            self._crash = None

    def _find_writer(self, line: Line) -> _Writer:
        """Return the writer of a line; one without a level may go on with a record that has one."""
        key = (line.process, line.level, line.stamped)
        writer, last = self._writers.get(key), self._last.get(line.process)
        busy = writer and (writer.traceback or writer.head)
        goes_on = last and (last.head or (last.recent and not patterns.ends_message(line.text)))
        if last and goes_on and not line.level and not busy:
            return last
        if writer is None:
            if len(self._writers) >= _WRITERS:
                self._end_writers()
            writer = self._writers[key] = _Writer()
        self._last[line.process] = writer
        return writer

    def _end_writers(self, keeps_named: bool = False) -> None:
        for key, writer in list(self._writers.items()):
            process, *_ = key
            if not (keeps_named and process and writer.traceback and not writer.head):
                self._finish(writer)
                del self._writers[key]
                if self._last.get(process) is writer:
                    del self._last[process]

    def _take(self, writer: _Writer, line: Line) -> None:
        text = line.text
        if writer.head:
            if text.strip() and not patterns.ends_message(text) and len(writer.message) < _LINES:
                writer.message.append(line)
                return
            writer.end_message()
        traceback = writer.traceback
        if not text.strip():
            writer.blank = True
        elif patterns.CHAINING_LINE.match(text):
            writer.chained = True
        elif patterns.starts_traceback(text):
            writer.end_traceback()
            if not writer.chained:
                self._finish(writer)
            writer.begin_traceback(line, header=text)
        elif frame := patterns.python_frame(text):
            if traceback is None and writer.blank:
                self._finish(writer)
            traceback = traceback or writer.begin_traceback(line, header="")
            traceback.indent, traceback.unindented = patterns.measure_indent(text), 0
            if len(traceback.frames) < _FRAMES:
                traceback.frames.append(frame)
        elif traceback and patterns.is_code_of(traceback.header, traceback.indent, line):
            return
        elif traceback and (head := patterns.LAST_LINE.match(text)):
            writer.head, writer.message = head, [line]
        else:
            self._take_outside(writer, line)

    def _take_outside(self, writer: _Writer, line: Line) -> None:
        """Take a line that isn't of a traceback; one that stays unfinished for many such lines was cut off."""
        if writer.traceback:
            writer.traceback.unindented += 1
            if writer.traceback.unindented > _UNFINISHED_AFTER:
                writer.end_traceback()
        if writer.traceback is None:
            self._emit(writer.chain)
        if head := patterns.exception_head(line):
            self._check_wordings(writer)
            writer.head, writer.message = head, [line]
        else:
            writer.recent.append(line)
            self._check_wordings(writer, keep=_WRAPPED_LINES - 1)

    def _finish(self, writer: _Writer) -> None:
        """End what a writer is in the middle of."""
        writer.end_message()
        writer.end_traceback()
        self._check_wordings(writer)
        self._emit(writer.chain)

    def _check_wordings(self, writer: _Writer, keep: int = 0) -> None:
        """Make events of a writer's recent lines, the last few of which are kept for those that follow."""
        while len(writer.recent) > keep:
            lines = tuple(writer.recent)
            line = writer.recent.popleft()
            text = "\n".join([line.printed, *(one.text for one in lines)])
            candidates = self._search.candidates(text)
            bears = tuple(one for one in candidates if patterns.reports(lines, one[1]))
            if bears or patterns.is_error(line.text, line.level):
                lines = lines if bears else (line,)
                outcome = Outcome("failed", message=" ".join(one.text.strip() for one in lines))
                self._emit([Event(outcome, lines, bears=bears, message_only=True, minor=not bears)])
