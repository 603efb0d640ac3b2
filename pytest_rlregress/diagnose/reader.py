"""A log's bytes, of any size: only the lines near something that may be a failure are decoded, with their numbers."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pytest_rlregress.diagnose.search import Search
from pytest_rlregress.logs.lines import Line, clean

_BLOCK_BYTES = 2**18
# Lines given around a hit. Every frame of a traceback is a hit, so what follows spans what other workers put between.
_BEFORE, _AFTER = 3, 40
# Characters that no text has, or hardly any.
_CONTROL = bytes(set(range(32)) - set(b"\a\b\t\n\f\r\x1b"))


class LogError(ValueError):
    """A log that cannot be read; the message names it and says why."""


def read(path: Path, search: Search, tell: Callable[[int], None] = lambda _: None) -> Iterator[Line]:
    """The lines of a log file, plain or gzipped, that are worth reading.

    Args:
        path: The file.
        search: What its bytes are searched for.
        tell: Called with the number of bytes read so far of the file, after each block.

    Raises:
        LogError: Missing, unreadable, a folder, or no text.
    """
    try:
        with path.open("rb") as file:
            stream: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            yield from read_stream(stream, str(path), search, lambda _: tell(file.tell()))
    except (EOFError, zlib.error) as error:  # a truncated or damaged gzip file
        raise LogError(f"{path}: {error}") from None
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from None


def read_stream(
    stream: IO[bytes], name: str, search: Search, tell: Callable[[int], None] = lambda _: None
) -> Iterator[Line]:
    """The lines of an open log that are worth reading; see ``read``."""
    yield from near(_blocks(stream, name, tell), search)


def near(blocks: Iterable[bytes], search: Search) -> Iterator[Line]:
    """The lines worth reading; a gap in their numbers is where lines were passed over."""
    number, tail, owed = 1, b"", 0
    for fresh in blocks:
        block = tail + fresh
        spans = []
        if owed:
            stop, owed = _forward(block, 0, owed)
            spans.append((0, stop))
        position = len(tail)
        for hit in search.hits(block, position):
            if hit < position:  # on the same line as the last one
                continue
            start = _back(block, hit, _BEFORE)
            stop, owed = _forward(block, hit, _AFTER)
            if spans and start <= spans[-1][1]:
                start, _ = spans.pop()
            spans.append((start, stop))
            position, _ = _forward(block, hit, 1)
        given = 0
        for start, stop in spans:
            number += block.count(b"\n", given, start)
            for offset, text in enumerate(block[start:stop].removesuffix(b"\n").decode(errors="replace").split("\n")):
                yield from clean(number + offset, text)
            number += block.count(b"\n", start, stop)
            given = stop
        rest = max(given, _back(block, len(block), _BEFORE))
        number += block.count(b"\n", given, rest)
        tail = block[rest:]


def _forward(block: bytes, position: int, lines: int) -> tuple[int, int]:
    """Where ``lines`` lines end, and how many of them are not in the block."""
    for done in range(lines):
        position = block.find(b"\n", position) + 1
        if not position:
            return len(block), lines - done
    return position, 0


def _back(block: bytes, position: int, lines: int) -> int:
    """Where the line that is ``lines`` lines before a position begins."""
    for _ in range(lines + 1):
        position = block.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _blocks(stream: IO[bytes], name: str, tell: Callable[[int], None]) -> Iterator[bytes]:
    """Blocks of whole lines; a line longer than a block is cut, best between two states of its progress bar."""
    chunks = _chunks(stream, tell)
    first = next(chunks, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # what PowerShell's > writes
        chunks = (text.encode() for text in codecs.iterdecode(_put_back(first, chunks), "utf-16", errors="replace"))
    else:
        text = first.lstrip(b"\0")  # a log cut short while it was written to begins with these
        if len(text) - len(text.translate(None, _CONTROL)) > len(text) // 100:
            raise LogError(f"{name}: no text but binary data; give a log, plain or gzipped")
        chunks = _put_back(first, chunks)
    held = b""
    for chunk in chunks:
        chunk = held + chunk
        end = chunk.rfind(b"\n") + 1 or (len(chunk) > _BLOCK_BYTES and (chunk.rfind(b"\r") + 1 or len(chunk)))
        held = chunk[end:]
        if end:
            yield chunk[:end]
    if held:
        yield held


def _chunks(stream: IO[bytes], tell: Callable[[int], None]) -> Iterator[bytes]:
    read_bytes = 0
    while chunk := stream.read(_BLOCK_BYTES):
        read_bytes += len(chunk)
        tell(read_bytes)
        yield chunk


def _put_back(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
