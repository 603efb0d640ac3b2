"""How a contained child ended, and what its other processes left: plain values."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostics:
    """What the other processes of a test had left when it failed.

    Attributes:
        texts: Titled: the libraries of forks that died of a native fault, the deaths that Ray's logs tell of, the last
            lines of the logs.
        signal: Name of the signal that one of them died of.
    """

    texts: tuple[tuple[str, str], ...] = ()
    signal: str | None = None


NO_DIAGNOSTICS = Diagnostics()


@dataclass(frozen=True)
class Death:
    """How a contained child ended before its test did.

    Attributes:
        kind: ``crashed`` or ``hung``.
        signal: Name of the signal it died of, or None for an exit.
        message: For people: one line, and what is quoted.
        log: What the child wrote to its log since the phase began, stacks included.
        sections: Titled texts: stacks, logs, libraries, what was killed with it.
        seconds: How long the test had run.
    """

    kind: str
    signal: str | None
    message: str
    log: str
    sections: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


def how_it_ended(status: int | None, raw: bool = True) -> tuple[str | None, str]:
    """Signal name, if any, and one line for people, of a wait status (or of a Popen return code)."""
    if status is None:
        return None, "the process and its supervisor were killed"
    code = os.waitstatus_to_exitcode(status) if raw else status
    if code >= 0:
        return None, f"the process ended with exit code {code} in the middle of the test"
    name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
    return name, f"died of {name} ({signal.strsignal(-code)})"
