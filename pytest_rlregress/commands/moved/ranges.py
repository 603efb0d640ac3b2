"""A wheel on a server as a file for ``zipfile``, of which only the parts that are needed are read."""

from __future__ import annotations

import io
import re
import shutil
import urllib.request
from collections.abc import Iterable
from tempfile import TemporaryFile
from typing import IO
from urllib.parse import urlsplit

from pytest_rlregress.commands.moved.index import Wheel, open_url

_GAP = 256 * 1024  # what is between two parts is read too if it is no longer
_END = 128 * 1024  # a wheel's directory is at its end


def open_wheel(wheel: Wheel) -> IO[bytes]:
    """Open a wheel: by ranges where the server has them, else all of it in a file that has no name."""
    if wheel.url.startswith("file:"):
        return open(urllib.request.url2pathname(urlsplit(wheel.url).path), "rb")
    answer = open_url(wheel.url, {"Range": f"bytes=-{_END}", "Accept-Encoding": "identity"})
    with answer:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range") or "")
        if answer.status == 206 and found:
            return RangeFile(wheel.url, int(found[3]), int(found[1]), answer.read())  # type: ignore[return-value]
        whole = TemporaryFile()  # noqa: SIM115 (the caller's)
        shutil.copyfileobj(answer, whole)
    whole.seek(0)
    return whole


class RangeFile(io.RawIOBase):
    """A file on a server, of which only the parts that are asked for are read.

    Args:
        url: Where it is.
        size: In bytes.
        begin: Where the part that is known begins.
        part: That part.
    """

    def __init__(self, url: str, size: int, begin: int, part: bytes) -> None:
        super().__init__()
        self._url, self._size, self._at = url, size, 0
        self._parts: dict[int, bytes] = {begin: part}
        self._ahead: list[tuple[int, int]] = []

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position."""
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, from the parts that are known or from the server."""
        end = self._size if size < 0 else min(self._at + size, self._size)
        begin, self._at = self._at, end
        if begin >= end:
            return b""
        for start, part in self._parts.items():
            if start <= begin and end <= start + len(part):
                return part[begin - start : end - start]
        for first, last in self._ahead:
            if first <= begin and end <= last:
                self._parts[first] = self._fetch(first, last)
                return self._parts[first][begin - first : end - first]
        return self._fetch(begin, end)

    def read_ahead(self, spans: Iterable[tuple[int, int]]) -> None:
        """Say which parts will be read, in their order: those that are near to each other are read as one."""
        for first, last in spans:
            if self._ahead and first - self._ahead[-1][1] <= _GAP:
                self._ahead[-1] = (self._ahead[-1][0], last)
            else:
                self._ahead.append((first, last))

    def forget(self, until: int) -> None:
        """Forget the parts that end there or before."""
        self._parts = {at: part for at, part in self._parts.items() if at + len(part) > until}

    def _fetch(self, begin: int, end: int) -> bytes:
        wanted = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        with open_url(self._url, wanted) as answer:
            part: bytes = answer.read()
        if answer.status != 206 or len(part) != end - begin:
            raise OSError(f"the server sent {len(part)} bytes for the {end - begin} that were asked for")
        return part
