"""Removes what runs leave behind: temporary folders of sessions, shared memory of processes that are dead (Linux)."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.util import files, shared_memory
from pytest_rlregress.util.processes import descendants

_PREFIX = "rlr-"
# The path of a Unix socket may have 107 bytes. A child's folder lies 21 below this one, and vLLM names its sockets by a
# uuid there.
_LONGEST = 107 - 21 - 37
_SHORT = "/tmp"
_LOCK = "lock"
_IN_MOVED_TO, _IN_CREATE = 0x80, 0x100  # linux/inotify.h


@dataclass(frozen=True)
class SessionFolder:
    """A temporary folder of this process; whoever finds its lock free may remove it."""

    path: Path
    _lock: int

    def remove(self) -> None:
        """Remove the folder and everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def session_folder() -> SessionFolder:
    """Make and lock a folder ``rlr-XXXXXXXX`` in the temporary folder; remove those of pytest runs that were killed.

    Where the temporary folder's path is too long for Unix sockets below it, the folder is made in /tmp.
    """
    temporary = tempfile.gettempdir()
    if len(os.fsencode(temporary)) > _LONGEST and os.access(_SHORT, os.W_OK | os.X_OK):
        temporary = _SHORT
    sweep(Path(temporary))
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary))
        # Until the lock is taken another run may find the folder abandoned, and remove it.
        lock = _lock(path)
        if lock is not None:
            return SessionFolder(path, lock)


def sweep(temporary: Path) -> None:
    """Remove every session's folder whose pytest is gone."""
    for folder in temporary.glob(f"{_PREFIX}*"):
        remove_if_abandoned(folder)


def remove_if_abandoned(folder: Path) -> None:
    """Remove a session's folder whose pytest is gone; one that is in use, or another user's, stays."""
    with suppress(OSError):
        if folder.lstat().st_uid != os.getuid():
            return
    lock = _lock(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder for as long as the descriptor is open; None if another process has it or removed it."""
    path = folder / _LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    with suppress(OSError):
        # Of another inode is one that was removed, together with its folder, after it was opened here.
        if files.lock(lock) and os.path.samestat(path.stat(), os.fstat(lock)):
            return lock
    os.close(lock)
    return None


class SharedMemoryWatch:
    """Notes what the descendants of this process make in ``/dev/shm``, while they have it mapped or open.

    It decides what is removed after them: once they are dead, nothing says whose a file was. The kernel says when to
    look (inotify): as soon as there is a new one.
    Others may make something there at the same time, and what nobody holds may be theirs.
    """

    def __init__(self) -> None:
        self._before, self._made = shared_memory.files(), set[shared_memory.Entry]()
        self._events = -1
        if shared_memory.FOLDER.is_dir():
            libc = ctypes.CDLL(None)
            self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            libc.inotify_add_watch(self._events, os.fsencode(shared_memory.FOLDER), _IN_CREATE | _IN_MOVED_TO)

    def sources(self) -> list[int]:
        """Descriptors that can be read when there is something to ``look`` at."""
        return [self._events] if self._events >= 0 else []

    def look(self) -> None:
        """See who made what is new."""
        with suppress(BlockingIOError):
            os.read(self._events, 65536)
        new = shared_memory.files() - self._before - self._made
        ours = [process.pid for process in descendants(os.getpid())]
        self._made |= {entry for entry, pids in shared_memory.holders(new, ours).items() if pids}

    def left(self) -> frozenset[shared_memory.Entry]:
        """Find what the descendants made and left there."""
        return shared_memory.files() & self._made

    def remove(self) -> None:
        """Remove what the descendants made, who are dead now, and no other process has taken over."""
        left = self.left()
        for entry, pids in shared_memory.holders(left).items() if left else ():
            if not pids:
                entry.path.unlink(missing_ok=True)
