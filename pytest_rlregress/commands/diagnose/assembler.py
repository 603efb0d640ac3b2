"""Assemble the lines of a log into events, with the lines around them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from pytest_rlregress.commands.diagnose.crashes import Crashes
from pytest_rlregress.commands.diagnose.events import Chain, Event
from pytest_rlregress.commands.diagnose.tracebacks import Tracebacks
from pytest_rlregress.logs.lines import Line

_CONTEXT_LINES = 60
# Where hundreds of ranks print one traceback line by line, so many lines of source are passed over between two frames.
_BRIDGED_LINES = 1000


class Assembler:
    """Makes chains of events out of the lines of a log.

    Args:
        hinted: Whether a line has a part of a message that is an event by itself.
        is_event: Whether a line, wrapped over those that follow it, is an event by its message alone.
    """

    def __init__(self, hinted: Callable[[Line], bool], is_event: Callable[[tuple[Line, ...]], bool]) -> None:
        self._tracebacks = Tracebacks(hinted, is_event, self._emit)
        self._crashes = Crashes(self._emit)
        self._context: deque[Line] = deque(maxlen=_CONTEXT_LINES)
        self._number = self._seen = 0
        self._waiting: deque[tuple[int, Chain]] = deque()  # for the context that follows

    def feed(self, line: Line) -> Iterator[Chain]:
        """Take a line."""
        passed_over = line.number - self._number - 1
        if passed_over > 0:
            yield from self._end(keeps_named=passed_over <= _BRIDGED_LINES)
        self._number = line.number
        if line.bar:
            return
        self._seen += 1
        self._context.append(line)
        others = self._tracebacks
        if not self._crashes.take(line, others.is_open(line), others.has_message(line)):
            self._tracebacks.take(line)
        while self._waiting and self._waiting[0][0] <= self._seen:
            yield self._with_context(self._waiting.popleft()[1])

    def end(self) -> Iterator[Chain]:
        """End what is open: nothing follows."""
        yield from self._end()

    def _end(self, keeps_named: bool = False) -> Iterator[Chain]:
        self._tracebacks.end(keeps_named)
        self._crashes.end()
        while self._waiting:
            yield self._with_context(self._waiting.popleft()[1])
        self._context.clear()

    def _emit(self, chain: list[Event]) -> None:
        self._waiting.append((self._seen + _CONTEXT_LINES // 2, tuple(chain)))

    def _with_context(self, chain: Chain) -> Chain:
        log = "\n".join(line.printed for line in self._context)
        return tuple(replace(event, outcome=replace(event.outcome, log=log)) for event in chain)
