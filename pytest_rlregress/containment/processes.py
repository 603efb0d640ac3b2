"""Processes by id and start, their descendants and what they are: read from /proc, where each costs microseconds."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

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
    """The living descendants of a process, without this one, nor those in ``but`` and what descends from them."""
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
    """The process of that id, unless it is dead and waits to be collected."""
    with suppress(OSError):
        # The name, in parentheses, may have any character in it.
        state, *numbers = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return Process(pid, int(numbers[18])) if state not in "ZX" else None
    return None


def _children(pid: int) -> list[int]:
    if not _LISTS_CHILDREN:
        with suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
    children = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                children += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return [int(child) for child in children]


def own_memory(pid: int) -> int:
    """Bytes that only this process holds: what it shares with a server it was forked from is not its own."""
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().uss)
    return 0


def command(pid: int) -> str:
    """A process' command line, its program by name; empty for one that is gone."""
    with suppress(OSError):
        # A process that has given itself a title leaves empty arguments behind.
        program, *arguments = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        return shlex.join([os.path.basename(program), *arguments])
    return ""


def is_housekeeper(pid: int) -> bool:
    """Whether a process is one that a library starts once and keeps."""
    found = _HOUSEKEEPERS.search(command(pid))
    if found is None or "forkserver" not in found[0]:
        return found is not None
    # What a fork server forks for a user has the fork server's command line.
    with suppress(OSError):
        parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        return "forkserver" not in command(int(parent))
    return True
