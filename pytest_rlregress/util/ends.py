"""Signals that ask a process to end, as an exception: what it holds is released, and the exit code names the signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager


class Ended(KeyboardInterrupt):
    """A signal asked this process to end; like Ctrl-C no ``except Exception`` takes it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def raise_once(number: int, frame: object) -> None:
    """Raise ``Ended``, as a handler of signals; a second signal doesn't wait for what the first one began."""
    signal.signal(number, signal.SIG_DFL)
    raise Ended(number)


@contextmanager
def raising(numbers: Sequence[int] = (signal.SIGTERM, signal.SIGHUP)) -> Generator[None]:
    """Let these signals raise ``Ended``, each where nobody handles it and it isn't ignored, as under nohup."""
    ours = threading.current_thread() is threading.main_thread()
    taken = [number for number in numbers if ours and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, raise_once)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) is raise_once:
                signal.signal(number, signal.SIG_DFL)
