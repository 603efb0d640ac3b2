"""Locks that give a GPU to one process at a time: of xdist's workers, and of one user's runs on a machine.

Each GPU is a file that its holder has locked, so a lock ends with its holder, however that dies. Whoever waits has a
ticket, and nobody takes a GPU that an older ticket could use: one that needs several GPUs gets its turn too.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.hardware.nvml import Gpu
from pytest_rlregress.util import files

# The same for every run of a user: neither TMPDIR nor XDG_RUNTIME_DIR, which a run from cron or in ssh may lack.
_MACHINE = Path("/tmp")
_TICKET = "ticket-"
_SAY_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_STALE_SECONDS = 10.0


@dataclass(frozen=True)
class GpuLock:
    """GPUs that are this process' own.

    Attributes:
        uuids: Of cards or MIG slices, in the order they were offered: what CUDA_VISIBLE_DEVICES takes.
    """

    uuids: tuple[str, ...]
    _locks: tuple[int, ...]

    def release(self) -> None:
        """Let others have them."""
        for lock in self._locks:
            _unlock(lock)


def acquire(gpus: Sequence[Gpu], count: int, say: Callable[[str], None]) -> GpuLock:
    """Take ``count`` of ``gpus``, all of them at once, as soon as no other process of this user holds them.

    A process that asks while it holds one may wait for itself: release first.

    Args:
        gpus: What may be taken, the preferred ones first.
        count: How many.
        say: Takes a line for people every 10 s of waiting: for whom.

    Raises:
        ValueError: ``count`` is not between 1 and ``len(gpus)``.
        PermissionError: The folder with the locks is not this user's alone.
    """
    if not 1 <= count <= len(gpus):
        offered = ", ".join(gpu.uuid for gpu in gpus) or "no GPU"
        raise ValueError(f"a test asks for {count} GPUs at once, and this run may use {len(gpus)} ({offered})")
    folder = _folder()
    begun = last = time.monotonic()
    with _ticket(folder, gpus) as ticket:
        while True:
            ahead = _ahead(folder, ticket, gpus)
            if not ahead and (locks := _take(folder, gpus, count)):
                return GpuLock(tuple(locks), tuple(locks.values()))
            if time.monotonic() - last >= _SAY_SECONDS:
                last = time.monotonic()
                waits = [f"GPU {gpu.index} is held by {who}" for gpu in gpus if (who := _holder(_file(folder, gpu)))]
                waits += [f"{who} is first in the queue" for who in ahead[:1]]
                whom = "; ".join(waits) or "just given back"
                say(f"waiting for {count} of {len(gpus)} GPUs ({last - begun:.0f} s): {whom}")
            time.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.5))


def _folder() -> Path:
    folder = _MACHINE / f"rlregress-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder}, where runs of one user lock the GPUs they use, must be a folder of that user (id "
            f"{os.getuid()}) with mode 0700; it belongs to user id {status.st_uid} and has mode "
            f"{status.st_mode & 0o7777:04o}: remove it"
        )
    return folder


def _take(folder: Path, gpus: Sequence[Gpu], count: int) -> dict[str, int]:
    """Lock ``count`` GPUs, the first that are free; none, and nothing returned, if there are fewer."""
    locks: dict[str, int] = {}
    for gpu in gpus:
        lock = os.open(_file(folder, gpu), os.O_RDWR | os.O_CREAT, 0o600)  # never inherited by a program (PEP 446)
        if not files.lock(lock):
            os.close(lock)
            continue
        locks[gpu.uuid] = lock
        if len(locks) == count:
            for lock in locks.values():
                os.ftruncate(lock, 0)
                os.pwrite(lock, _this_process().encode(), 0)
            return locks
    for lock in locks.values():
        _unlock(lock)
    return {}


@contextmanager
def _ticket(folder: Path, gpus: Sequence[Gpu]) -> Iterator[str]:
    """Stand in the queue: a locked file named by when its owner came, saying who it is and what it could use."""
    name = f"{_TICKET}{time.monotonic_ns():020d}-{os.getpid()}"
    ticket = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        files.lock(ticket, wait=True)
        os.write(ticket, json.dumps([_this_process(), [gpu.uuid for gpu in gpus]]).encode())
        yield name
    finally:
        (folder / name).unlink(missing_ok=True)
        _unlock(ticket)


def _ahead(folder: Path, ticket: str, gpus: Sequence[Gpu]) -> list[str]:
    """Who came earlier and could use one of ``gpus``, the first first; removes the tickets of the dead."""
    uuids = {gpu.uuid for gpu in gpus}
    ahead = []
    for path in sorted(folder.glob(f"{_TICKET}*")):
        if not _is_locked(path):
            # A new one may not be locked yet. A time from before the machine was started is in the future.
            age = time.monotonic_ns() - int(path.name.split("-")[1])
            if abs(age) > _STALE_SECONDS * 1e9:
                path.unlink(missing_ok=True)
        elif path.name < ticket:
            with suppress(OSError, ValueError):  # gone, or not written yet
                who, wanted = json.loads(path.read_text())
                if uuids.intersection(wanted):
                    ahead.append(who)
    return ahead


def _holder(path: Path) -> str:
    """Who holds the GPU of a lock file; empty for nobody."""
    with suppress(OSError):
        return path.read_text() if _is_locked(path) else ""
    return ""


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not files.lock(file, shared=True)
    finally:
        os.close(file)


def _unlock(lock: int) -> None:
    files.unlock(lock)
    os.close(lock)


def _file(folder: Path, gpu: Gpu) -> Path:
    return folder / gpu.uuid.replace("/", "-")  # drivers before R470 name a slice MIG-GPU-…/1/0


def _this_process() -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # whose own command line says nothing
    command = f"{worker} of process {os.getppid()}" if worker else shlex.join(sys.argv)[:200]
    return f"process {os.getpid()} ({command})"
