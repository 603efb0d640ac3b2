"""Removes what runs leave behind: temporary folders of sessions, shared memory of processes that are dead (Linux)."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.util import files

_PREFIX = "rlr-"
# The path of a Unix socket may have 107 bytes. A child's folder lies 21 below this one, and vLLM names its sockets by a
# uuid there.
_LONGEST = 107 - 21 - 37
_SHORT = "/tmp"
_MARK = "rlregress-session"


@dataclass(frozen=True)
class SessionFolder:
    """A temporary folder of this process; whoever finds its mark unlocked may remove it."""

    path: Path
    _mark: int

    def remove(self) -> None:
        """Remove the folder and everything in it."""
        _remove(self.path)
        os.close(self._mark)


def session_folder() -> SessionFolder:
    """Make and mark a folder ``rlr-XXXXXXXX`` in the temporary folder; remove those of pytest runs that were killed.

    Where the temporary folder's path is too long for Unix sockets below it, the folder is made in /tmp.
    """
    temporary = tempfile.gettempdir()
    if len(os.fsencode(temporary)) > _LONGEST and os.access(_SHORT, os.W_OK | os.X_OK):
        temporary = _SHORT
    sweep(Path(temporary))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary))
    unlocked = path / f"{_MARK}.new"
    mark = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with suppress(OSError):  # a disk that knows no locks: there nobody finds it unlocked
        files.lock(mark)
    os.write(mark, _mark_of(path, path.lstat()))
    unlocked.rename(path / _MARK)  # locked by now: whoever looks sees the lock
    return SessionFolder(path, mark)


def sweep(temporary: Path) -> None:
    """Remove every session's folder whose pytest is gone."""
    for folder in temporary.glob(f"{_PREFIX}*"):
        remove_if_abandoned(folder)


def remove_if_abandoned(folder: Path) -> None:
    """Remove a session's folder whose pytest is gone.

    A folder that is in use stays, and every folder without the mark that this package wrote for it: a user's of such a
    name, a copy, a renamed one, the target of a link. Nothing is written to find out.
    """
    with suppress(OSError), ExitStack() as opened:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, inside)
        mark = os.open(_MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
        opened.callback(os.close, mark)
        status = os.fstat(inside)
        expected = _mark_of(folder, status)
        if status.st_uid != os.getuid() or not stat.S_ISREG(os.fstat(mark).st_mode) or not files.lock(mark):
            return
        # Under the lock: another process may have removed the folder meanwhile.
        if os.read(mark, len(expected) + 1) == expected and os.path.samestat(folder.lstat(), status):
            _remove(folder)


def _mark_of(folder: Path, status: os.stat_result) -> bytes:
    """Return what the mark of a session's folder says: its name and inode, so that no copy has the same."""
    return f"temporary folder of pytest-rlregress: {folder.name} {status.st_dev}:{status.st_ino}\n".encode()


def _remove(folder: Path) -> None:
    """Remove a session's folder, its mark last: what cannot be removed now is left for the next session."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != _MARK:
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    path.unlink()
        if [path.name for path in folder.iterdir()] == [_MARK]:
            shutil.rmtree(folder, ignore_errors=True)
