"""What happened in a log: an exception, a crash, a line that says by its wording that something failed."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.logs.lines import Line


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
