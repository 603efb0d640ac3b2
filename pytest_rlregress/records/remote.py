"""Records on shared storage: written on this machine first and then copied, read through copies that stay here.

The storage is named by a URL that fsspec knows, such as ``s3://bucket/nightly``. fsspec's own implementation of the
protocol counts; for S3, Google Cloud and Azure obstore stands in, whose wheel needs nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from pytest_rlregress.records.reader import JOURNAL, RecordError, is_journal, read
from pytest_rlregress.util import cache
from pytest_rlregress.util.files import check_url, write_whole

#: Records of a hardware profile that a run fetches to compare with: the last one may be of a quick run.
_LAST = 5
_ANSWER_SECONDS = 300
_AT_ONCE = 8
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
    """The records below a URL.

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
        """Check that records can be written there, send what earlier runs left unsent, fetch the last of a profile.

        Raises:
            RemoteError: Nothing can be written there.
        """
        self._run_aside("begin", profile or "unknown")

    def end_run(self) -> None:
        """Send what is unsent.

        Raises:
            RemoteError: Something couldn't be copied: it stays in ``unsent``.
        """
        self._run_aside("end")

    def fetch_all(self) -> list[Path]:
        """Return copies of all records and journals there, and those that are unsent.

        Raises:
            RemoteError: They can't be read.
        """
        return list(map(Path, self._run_aside("fetch")))

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

    def check_writable(self) -> None:
        """Write a small hidden file there.

        Raises:
            RemoteError: It can't be written.
        """
        storage, root = self._open()
        self._try(storage.pipe_file, f"{root}/.rlregress", b"")

    def send(self) -> None:
        """Copy there what is unsent: records, and the journals of runs that were killed.

        Raises:
            RemoteError: Something couldn't be copied: it stays in ``unsent``.
        """
        storage, root = self._open()
        for path in sorted(self.unsent.glob("[!.]*.json*")):
            if is_journal(path) and _is_running(path):
                continue
            with suppress(FileNotFoundError):  # another run has sent it meanwhile
                content = path.read_bytes()
                self._try(storage.pipe_file, f"{root}/{path.name}", content)
                path.rename(self.copies / path.name)

    def fetch(self, pattern: str = "*", last: int = 0) -> list[Path]:
        """Return copies of the records and journals there, and those that are unsent.

        Args:
            pattern: What their names match.
            last: How many, the newest by name; 0 for all.

        Raises:
            RemoteError: They can't be read.
        """
        storage, root = self._open()
        found: dict[Path, Any] = {}
        for name, about in self._try(storage.find, root, detail=True).items():
            below = PurePosixPath(name.removeprefix(root).lstrip("/") or PurePosixPath(name).name)
            hidden = any(part.startswith(".") for part in below.parts)
            if below.name.endswith((".json", JOURNAL)) and below.match(pattern) and not hidden:
                found[self.copies / below] = name, about.get("size")
        wanted = sorted(found, key=lambda path: path.name)[-last:]

        def copy(path: Path) -> None:
            name, size = found[path]
            if not path.exists() or path.stat().st_size != size:
                content = self._try(storage.cat_file, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(copy, wanted))
        return [*wanted, *sorted(self.unsent.glob(f"[!.]{pattern}"))]

    def _open(self) -> tuple[Any, str]:
        """Return fsspec's file system for the URL, and the path of its folder there."""
        protocol = urlsplit(self.url).scheme
        extra = f"{self.url} needs pip install 'pytest-rlregress[remote]'"
        try:
            import fsspec
        except ModuleNotFoundError:
            raise RemoteError(extra) from None
        try:
            fsspec.get_filesystem_class(protocol)
        except ImportError:
            try:
                import obstore.fsspec
            except ModuleNotFoundError:
                raise RemoteError(extra) from None
            obstore.fsspec.register(protocol)
        except ValueError as error:
            raise RemoteError(f"{self.url}: {error}") from None
        storage, root = self._try(fsspec.core.url_to_fs, self.url)
        return storage, str(root).rstrip("/")

    def _try(self, ask: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return ask(*arguments, **options)
        except Exception as error:  # of whichever client
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise RemoteError(f"{self.url}: {why[:_CHARACTERS]}") from None


def _is_running(journal: Path) -> bool:
    try:
        return read(journal).results.extra.state == "running"
    except RecordError:
        return True  # nothing to send yet


def main() -> int:
    """Do ``begin PROFILE``, ``end`` or ``fetch``: ``python -m pytest_rlregress.records.remote URL WHAT``."""
    url, what, *profiles = sys.argv[1:]
    records = RemoteRecords(url)
    try:
        if what == "begin":
            records.check_writable()
        if what != "fetch":
            records.send()
        if what != "end":
            pattern, last = (f"*-{profiles[0]}-*.json", _LAST) if profiles else ("*", 0)
            print(*records.fetch(pattern, last), sep="\n")
    except RemoteError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a client's threads may abort the interpreter that ends in order
