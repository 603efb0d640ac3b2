"""Records on shared storage: written on this machine first and then copied, read through copies that stay here.

The storage is named by a URL that fsspec knows, such as ``s3://bucket/nightly``. fsspec's own implementation of the
protocol counts; for S3, Google Cloud and Azure obstore stands in, whose wheel needs nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from pytest_rlregress.records.reader import JOURNAL, TRUST, RecordError, is_journal, read
from pytest_rlregress.util import cache
from pytest_rlregress.util.files import check_url

#: Records of a hardware profile that a run fetches to compare with: the last one may be of a quick run.
_LAST = 5
_ANSWER_SECONDS = 300
_CHARACTERS = 500  # of an error


class RemoteError(Exception):
    """Storage that cannot be read or written: the message says where, why and what to do."""


def find_here(source: str) -> list[Path]:
    """Find what a source of records names on this machine: a path itself, of a URL the copies of what is below it.

    Raises:
        RemoteError: The storage can't be read, or has no record there.
    """
    if "://" not in source:
        return [Path(source)]
    try:
        found = RemoteRecords(source).fetch_all()
    except ValueError as error:
        raise RemoteError(f"not allowed. Allowed: {error}") from None
    if not found:
        raise RemoteError(f"{source}: no record there, or no such bucket. pytest --rl-record-dir={source} writes one")
    return found


class RemoteRecords:
    """The records below a URL. Each method raises a RemoteError where the storage can't be read or written.

    Attributes:
        copies: The folder with what was read from there or copied to there.
        unsent: The folder in it with what still has to be copied there.

    Raises:
        ValueError: The URL holds a password, which the record would hold too.
    """

    def __init__(self, url: str) -> None:
        check_url(url)
        self.url = url.rstrip("/")
        self.copies = cache.folder() / "records" / quote(self.url, safe="")
        self.unsent = self.copies / "unsent"

    def begin_run(self, profile: str | None) -> None:
        """Check that records can be written there, send what earlier runs left unsent, fetch the last of a profile."""
        self._run_aside("begin", profile or "unknown")

    def end_run(self) -> None:
        """Send what is unsent; what can't be copied stays in ``unsent``."""
        self._run_aside("end")

    def fetch_all(self) -> list[Path]:
        """Return copies of all records and journals there, and those that are unsent."""
        return list(map(Path, self._run_aside("fetch")))

    def send_trust(self) -> None:
        """Send the files that say which records are trusted."""
        self._run_aside("trust")

    def _run_aside(self, *arguments: str) -> list[str]:
        # In a process of its own: tests are forked from this one, which must have no thread and none of their modules.
        command = [sys.executable, "-P", "-m", "pytest_rlregress.records.remote", self.url, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            raise RemoteError(f"{self.url}: no answer in {_ANSWER_SECONDS} s") from None
        except subprocess.CalledProcessError as error:
            told = error.stderr.splitlines() or [f"{self.url}: the copying process ended with {error.returncode}"]
            raise RemoteError(told[-1]) from None
        return done.stdout.splitlines()


# -- in the process of its own -----------------------------------------------------------------------------------------


def main() -> int:
    """Do ``begin PROFILE``, ``end``, ``fetch`` or ``trust``: ``python -m pytest_rlregress.records.remote URL WHAT``."""
    url, what, *profiles = sys.argv[1:]
    records = RemoteRecords(url)
    try:
        storage, root = _open(records.url)
        if what == "begin":
            storage.pipe_file(f"{root}/.rlregress", b"")
        if what == "trust":
            for path in records.copies.rglob(TRUST):
                storage.pipe_file(f"{root}/{path.relative_to(records.copies).as_posix()}", path.read_bytes())
            return 0
        if what != "fetch":
            _send(storage, root, records)
        if what != "end":
            pattern, last = (f"*-{profiles[0]}-*.json", _LAST) if profiles else ("*", 0)
            print(*_fetch(storage, root, records, pattern, last), sep="\n")
    except RemoteError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # of whichever client
        why = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{records.url}: {why[:_CHARACTERS]}", file=sys.stderr)
        return 1
    return 0


def _open(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for the URL, and the path of its folder there."""
    protocol = urlsplit(url).scheme
    try:
        import fsspec

        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError:
            import obstore.fsspec

            obstore.fsspec.register(protocol)
    except ModuleNotFoundError:
        raise RemoteError(f"{url} needs pip install 'pytest-rlregress[remote]'") from None
    except ValueError as error:
        raise RemoteError(f"{url}: {error}") from None
    storage, root = fsspec.core.url_to_fs(url)
    return storage, str(root).rstrip("/")


def _send(storage: Any, root: str, records: RemoteRecords) -> None:
    """Copy there what is unsent: records, and the journals of runs that were killed."""
    for path in sorted(records.unsent.glob("[!.]*.json*")):
        if is_journal(path) and _is_running(path):
            continue
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # another run has sent it meanwhile
            continue
        storage.pipe_file(f"{root}/{path.name}", content)
        with suppress(FileNotFoundError):
            path.rename(records.copies / path.name)


def _is_running(journal: Path) -> bool:
    try:
        return read(journal).results.extra.state == "running"
    except RecordError:
        return True  # nothing to send yet


def _fetch(storage: Any, root: str, records: RemoteRecords, pattern: str, last: int) -> list[Path]:
    """Copy here the records and journals whose names match, the newest by name or all; return them and the unsent.

    Where all are asked for, what was decided about them comes too.
    """
    found: dict[Path, Any] = {}
    for name, about in storage.find(root, detail=True).items():
        below = PurePosixPath(name.removeprefix(root).lstrip("/") or PurePosixPath(name).name)
        hidden = any(part.startswith(".") for part in below.parts)
        if below.name.endswith((".json", JOURNAL, TRUST)) and below.match(pattern) and not hidden:
            found[records.copies / below] = name, about.get("size")
    wanted = sorted(found, key=lambda path: path.name)[-last:]
    new = [path for path in wanted if path.name == TRUST or not _has_size(path, found[path][1])]
    for folder in {path.parent for path in new}:
        folder.mkdir(parents=True, exist_ok=True)
    if new:
        storage.get([found[path][0] for path in new], list(map(str, new)))
    return [*(path for path in wanted if path.name != TRUST), *sorted(records.unsent.glob(f"[!.]{pattern}"))]


def _has_size(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a client's threads may abort the interpreter that ends in order
