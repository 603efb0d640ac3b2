"""The faults themselves, copied beside the suite of each tool: plain Python and its C library.

No name and no text in here says what a tool is to find out: tracebacks quote this file.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from typing import NoReturn

FOREVER = 300  # seconds; what is not ended before is counted and killed by the benchmark


def divides() -> None:
    """C's integer division by zero."""
    ctypes.CDLL(None).div(1, 0)


def dereferences() -> None:
    """Read address zero."""
    ctypes.string_at(0)


def frees_twice() -> None:
    """Free a block twice, so large that nothing else asks for its like in between."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    block = ctypes.c_void_p(libc.malloc(1000))
    libc.free(block)
    libc.free(block)


def is_killed() -> None:
    """As the kernel does when memory runs out: another process ends this one."""
    subprocess.run(["kill", "-9", str(os.getpid())], check=True)


def leaves(code: int) -> NoReturn:
    """Leave as native code that calls exit does."""
    os._exit(code)


def sleeps() -> None:
    """Sleep where signals and other threads still get their turn."""
    time.sleep(FOREVER)


def sleeps_in_c() -> None:
    """No other thread of the interpreter runs meanwhile: PyDLL keeps the GIL."""
    ctypes.PyDLL(None).sleep(FOREVER)


def starts_grandchild() -> None:
    """Start a process that no signal to the test's process group reaches."""
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"], start_new_session=True)


def starts_daemon() -> None:
    """Forked twice, as daemons are: its parent is gone before the test ends."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(FOREVER)
        os._exit(0)
    os.wait()


class Locked(Exception):
    """Holds what pickle refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def raises_locked() -> NoReturn:
    """Most clients of GPU services have such an exception."""
    raise Locked


class Wordless(Exception):
    """Cannot be printed."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no words")


def raises_wordless() -> NoReturn:
    """Raise an exception without a message: a report has to quote it nevertheless."""
    raise Wordless


def prints() -> None:
    """20 MB, past sys.stdout, as native code does."""
    subprocess.run("yes | head -c 20000000", shell=True, check=True)


def forks() -> None:
    """Two processes come back from the test."""
    os.fork()
