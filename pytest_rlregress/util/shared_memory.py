"""Files of shared memory on Linux, and the processes that hold them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.util.processes import descendants

FOLDER = Path("/dev/shm")
_IN_MOVED_TO, _IN_CREATE = 0x80, 0x100  # linux/inotify.h


@dataclass(frozen=True, order=True)
class Entry:
    """A file in ``/dev/shm``. A file that was deleted and recreated counts as new; a modified file does not."""

    name: str
    inode: int

    @property
    def path(self) -> Path:
        """Its path."""
        return FOLDER / self.name

    @property
    def size(self) -> int:
        """Bytes; 0 when it is gone."""
        with suppress(OSError):
            return self.path.lstat().st_size
        return 0


def files() -> frozenset[Entry]:
    """This user's files in ``/dev/shm``."""
    found = []
    with suppress(FileNotFoundError), os.scandir(FOLDER) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    found.append(Entry(entry.name, entry.inode()))
    return frozenset(found)


def holders(entries: Collection[Entry], pids: Collection[int] | None = None) -> dict[Entry, set[int]]:
    """Return the processes, of ``pids`` or of all this user's, that have each entry mapped or open."""
    found: dict[Entry, set[int]] = {entry: set() for entry in entries}
    if pids is None:
        pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    for pid in pids:
        with suppress(OSError):  # ended meanwhile, or not this user's to look into
            inodes = set(_inodes(Path("/proc", str(pid))))
            for entry in entries:
                if entry.inode in inodes:
                    found[entry].add(pid)
    return found


def _inodes(process: Path) -> Iterator[int]:
    """Yield the inodes in shared memory that a process has mapped or open: a semaphore's file was renamed by then."""
    for line in (process / "maps").read_text(errors="replace").splitlines():
        if str(FOLDER) in line:
            yield int(line.split(maxsplit=5)[4])
    for link in (process / "fd").iterdir():
        with suppress(OSError):
            # By name first: to ask for the file behind a descriptor may block, on a network file system that is gone.
            if os.readlink(link).startswith(str(FOLDER)):
                yield link.stat().st_ino


class SharedMemoryWatch:
    """Notes what the descendants of this process make in ``/dev/shm``, while they have it mapped or open.

    It decides what is removed after them: once they are dead, nothing says whose a file was. The kernel says when to
    look (inotify): as soon as there is a new one.
    Others may make something there at the same time, and what nobody holds may be theirs.
    """

    def __init__(self) -> None:
        self._before, self._made = files(), set[Entry]()
        self._events = -1
        if FOLDER.is_dir():
            libc = ctypes.CDLL(None)
            self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            libc.inotify_add_watch(self._events, os.fsencode(FOLDER), _IN_CREATE | _IN_MOVED_TO)

    def sources(self) -> list[int]:
        """Descriptors that can be read when there is something to ``look`` at."""
        return [self._events] if self._events >= 0 else []

    def look(self) -> None:
        """See who made what is new."""
        with suppress(BlockingIOError):
            os.read(self._events, 65536)
        new = files() - self._before - self._made
        ours = [process.pid for process in descendants(os.getpid())]
        self._made |= {entry for entry, pids in holders(new, ours).items() if pids}

    def left(self) -> frozenset[Entry]:
        """Find what the descendants made and left there."""
        return files() & self._made

    def remove(self) -> None:
        """Remove what the descendants made, who are dead now, and no other process has taken over."""
        left = self.left()
        for entry, pids in holders(left).items() if left else ():
            if not pids:
                entry.path.unlink(missing_ok=True)
