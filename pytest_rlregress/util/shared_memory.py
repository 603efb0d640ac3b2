"""Files of shared memory on Linux, and the processes that hold them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")


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
