"""Files that others may read or write at the same time: written whole, appended to by lines, locked."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit


def check_url(url: str) -> None:
    """Raise a ValueError, which says what is allowed, if a URL is malformed or holds a password, as a record would."""
    try:
        password = urlsplit(url).password
    except ValueError:  # "Invalid IPv6 URL"
        raise ValueError("a URL such as s3://bucket/folder") from None
    if password:
        raise ValueError("a URL without a password: give it to the storage's client by its environment")


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Give a path for a file's new content, which takes its place at the end; after an exception it is removed.

    The file is whole or as it was, whoever else writes it at the same time.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


def write_whole(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Write a file that is whole or as it was.

    Args:
        path: The file; its folder is there.
        content: Text is written as UTF-8.
        sync: Whether that is to hold even if the machine goes down.

    Raises:
        OSError: It cannot be written, such as on a full disk; nothing is left of it.
    """
    with replacing(path) as partial, open(partial, "xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk, too."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def append_json(file: int, values: Iterable[object]) -> None:
    """Append values to an open file as JSON, one a line: all of them, or nothing of any.

    Args:
        file: Open for appending.
        values: What JSON can hold.

    Raises:
        OSError: They cannot be written, such as on a full disk.
    """
    text = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    size = os.fstat(file).st_size
    try:
        while text:
            text = text[os.write(file, text) :]
    except OSError:
        os.ftruncate(file, size)
        raise


def open_regular(path: Path) -> int:
    """Open a regular file for reading; returns its descriptor.

    Raises:
        OSError: It can't be opened, or it is something else: to read a pipe or a device could take for ever.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(file).st_mode
    if stat.S_ISREG(kind):
        return file
    os.close(file)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; raise an OSError for anything else, as ``open_regular`` does."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def text_or_nothing(file: str | Path) -> str:
    """Return a file's text without the space around it; empty where it cannot be read."""
    try:
        return Path(file).read_text(errors="replace").strip()
    except OSError:
        return ""


def lock(file: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file, until every descriptor of this opening is closed; False if another process has it locked.

    Args:
        file: Its descriptor.
        shared: Whether others may lock it so, too.
        wait: Whether to wait for the other process.

    Raises:
        OSError: It lies on a disk that knows no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def unlock(file: int) -> None:
    """Unlock a file and close it: that alone is not enough where this process was forked meanwhile."""
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)
