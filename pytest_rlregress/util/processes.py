"""Processes: their descendants and what they are, read from /proc in microseconds; whom they end with (Linux)."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_PTRACER = 1, 36, 0x59616D61  # linux/prctl.h
_PR_SET_PTRACER_ANY = 2 ** (8 * ctypes.sizeof(ctypes.c_ulong)) - 1
# Libraries start these once, and use them until the process ends.
_HOUSEKEEPERS = re.compile(
    r"multiprocessing\.(resource_tracker|forkserver) import main|torch/_inductor/compile_worker|torch_shm_manager"
)
# Else (a kernel without CONFIG_PROC_CHILDREN) every process there is must be looked at.
_LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


class Process(NamedTuple):
    """One process, also when its id is another one's later: ``started`` is in clock ticks since the machine was."""

    pid: int
    started: int


def descendants(pid: int, but: Collection[Process] = ()) -> frozenset[Process]:
    """Return the living descendants of a process, without this one, those in ``but``, and what descends from them."""
    found: dict[int, Process] = {}
    below = _children(pid)
    while below:
        child = below.pop()
        if child not in found and (process := living(child)) and process not in but:
            found[child] = process
            below += _children(child)
    found.pop(os.getpid(), None)
    return frozenset(found.values())


def living(pid: int) -> Process | None:
    """Return the process of that id, unless it is dead and waits to be collected."""
    with suppress(OSError):
        # The name, in parentheses, may have any character in it.
        state, *numbers = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return Process(pid, int(numbers[18])) if state not in b"ZX" else None
    return None


def _children(pid: int) -> list[int]:
    if not _LISTS_CHILDREN:
        with suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
    children: list[bytes] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                children += read(f"/proc/{pid}/task/{task}/children").split()
    return [int(child) for child in children]


def read(file: str) -> bytes:
    """Return a file of /proc: a cluster of Ray has 400 threads to look at, which takes thrice as long through ``open``.

    Raises:
        OSError: The process is gone, or another user's.
    """
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return b"".join(iter(partial(os.read, descriptor, 65536), b""))
    finally:
        os.close(descriptor)


def own_memory(pid: int) -> int:
    """Bytes that only this process holds: what it shares with a server it was forked from is not its own."""
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().uss)
    return 0


def command(pid: int) -> str:
    """Return a process' command line, its program by name; empty for one that is gone."""
    with suppress(OSError):
        # A process that has given itself a title leaves empty arguments behind.
        program, *arguments = read(f"/proc/{pid}/cmdline").decode(errors="replace").rstrip("\0").split("\0")
        return shlex.join([os.path.basename(program), *arguments]) if program else ""
    return ""


def go_on(pid: int) -> None:
    """Let a process go on that a signal has stopped (SIGSTOP): it can hear of nothing."""
    with suppress(psutil.Error, OSError):
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            os.kill(pid, signal.SIGCONT)


def is_housekeeper(pid: int) -> bool:
    """Return whether a process is one that a library starts once and keeps."""
    found = _HOUSEKEEPERS.search(command(pid))
    if found is None or "forkserver" not in found[0]:
        return found is not None
    # What a fork server forks for a user has the fork server's command line.
    with suppress(psutil.Error):
        return "forkserver" not in command(psutil.Process(pid).ppid())
    return True


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command line that runs Python code with this process' import path and these arguments."""
    # Until it has the path, not from the current folder: that may hold a json.py.
    boot = "import sys; sys.path[:] = filter(None, sys.path); import json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    return [sys.executable, "-X", "faulthandler", "-c", boot + code, json.dumps(sys.path), *arguments]


def how_it_ended(status: int | None, raw: bool = True) -> tuple[str | None, str]:
    """Signal name, if any, and one line for people, of a wait status (or of a Popen return code)."""
    if status is None:
        return None, "the process and its supervisor were killed"
    code = os.waitstatus_to_exitcode(status) if raw else status
    if code >= 0:
        return None, f"the process ended with exit code {code} in the middle of the test"
    name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
    return name, f"died of {name} ({signal.strsignal(-code)})"


def end_with_parent(number: int, parent: int | None = None) -> None:
    """Have this process sent a signal when its parent ends, however that ends (Linux).

    Args:
        number: The signal.
        parent: The parent's id: if that has ended by now, the signal is sent at once.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def become_subreaper() -> None:
    """Take in every orphan among this process' descendants from now on (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def allow_tracing() -> None:
    """Let any process of this user read this process' stacks where ptrace_scope is 1; elsewhere it changes nothing.

    With that setting of Yama (Ubuntu's default) only an ancestor may, and py-spy isn't one. Survives exec; a forked
    process must ask again: https://docs.kernel.org/admin-guide/LSM/Yama.html
    """
    _prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
