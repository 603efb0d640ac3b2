"""Locks that give a GPU to one process at a time: of xdist's workers, and of one user's runs on a machine.

Each GPU is a file that its holder has locked, so a lock ends with its holder, however that dies. Whoever waits first
locks the queues of all GPUs it could use, and nobody passes it there: one that needs several GPUs gets its turn too.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_rlregress.hardware.nvml import Gpu
from pytest_rlregress.util import files

# The same for every run of a user: neither TMPDIR nor XDG_RUNTIME_DIR, which a run from cron or in ssh may lack.
_MACHINE = Path("/tmp")
_SAY_SECONDS = 10.0
_LOOK_SECONDS = 0.05
T = TypeVar("T")


@dataclass(frozen=True)
class GpuLock:
    """GPUs that are this process' own: cards or MIG slices, in the order they were offered."""

    gpus: tuple[Gpu, ...]
    _locks: tuple[int, ...]

    @property
    def variables(self) -> dict[str, str]:
        """The variables that show a process these GPUs and no others."""
        # By number, in the driver's order: engines of 2025 take no uuid. A slice has no number of its own.
        names = [gpu.uuid if gpu.mig else str(gpu.index) for gpu in self.gpus]
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}

    def release(self) -> None:
        """Let others have them."""
        for lock in self._locks:
            files.unlock(lock)


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
    paths = [folder / gpu.uuid.replace("/", "-") for gpu in gpus]  # drivers before R470 name a slice MIG-GPU-…/1/0
    queues = [path.with_name(f"queue-{path.name}") for path in paths]
    begun = last = time.monotonic()

    def wait_for(take: Callable[[], T | None]) -> T:
        nonlocal last
        while (taken := take()) is None:
            if time.monotonic() - last >= _SAY_SECONDS:
                last = time.monotonic()
                held = zip(gpus, paths, strict=True)
                waits = [f"GPU {gpu.index} is held by {who}" for gpu, path in held if (who := _holder(path))]
                ahead = [who for who in map(_holder, queues) if who not in ("", _this_process())]
                waits += [f"{who} is first in the queue" for who in ahead[:1]]
                whom = "; ".join(waits) or "just given back"
                say(f"waiting for {count} of {len(gpus)} GPUs ({last - begun:.0f} s): {whom}")
            time.sleep(_LOOK_SECONDS * random.uniform(0.5, 1.5))
        return taken

    with ExitStack() as stack:
        for queue in sorted(queues):  # in one order for all: nobody waits for one who waits for it
            stack.callback(files.unlock, wait_for(partial(_lock, queue)))
        locks = wait_for(lambda: _take(paths, count))
    return GpuLock(tuple(gpu for gpu, path in zip(gpus, paths, strict=True) if path in locks), (*locks.values(),))


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


def _take(paths: Sequence[Path], count: int) -> dict[Path, int] | None:
    """Lock ``count`` files, the first that are free; none if there are fewer."""
    locks: dict[Path, int] = {}
    for path in paths:
        if (lock := _lock(path)) is not None:
            locks[path] = lock
        if len(locks) == count:
            return locks
    for lock in locks.values():
        files.unlock(lock)
    return None


def _lock(path: Path) -> int | None:
    """Lock a file, and write into it who has it; None if another process has."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # never inherited by a program (PEP 446)
    if not files.lock(lock):
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, _this_process().encode(), 0)
    return lock


def _holder(path: Path) -> str:
    """Describe who has locked a file; empty for nobody."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return ""
    try:
        return "" if files.lock(file, shared=True) else path.read_text()
    finally:
        os.close(file)


def _this_process() -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER")  # whose own command line says nothing
    command = f"{worker} of process {os.getppid()}" if worker else shlex.join(sys.argv)[:200]
    return f"process {os.getpid()} ({command})"
