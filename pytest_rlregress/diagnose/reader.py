"""Read logs of any size: only the lines near something that may be a failure are decoded, with their numbers."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

from pytest_rlregress.diagnose.search import Search
from pytest_rlregress.logs.lines import Line, clean

_BLOCK_BYTES = 2**18
# Lines given around a hit. Every frame of a traceback is a hit, so these bridge what other workers print between.
_BEFORE, _AFTER = 3, 40
# Characters that no text has, or hardly any.
_CONTROL = bytes(set(range(32)) - set(b"\a\b\t\n\f\r\x1b"))


class LogError(ValueError):
    """A log that cannot be read; the message names it and says why."""


def read(path: Path, search: Search, progress: Callable[[int], None] = lambda _: None) -> Iterator[Line]:
    """Read the lines of a log file, plain or gzipped, that are worth it.

    Args:
        path: The file.
        search: What its bytes are searched for.
        progress: Called with the number of bytes read so far of the file, after each block.

    Raises:
        LogError: Missing, unreadable, a folder, or no text.
    """
    try:
        with path.open("rb") as file:
            stream: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            yield from read_stream(stream, str(path), search, lambda _: progress(file.tell()))
    except (EOFError, zlib.error) as error:  # a truncated or damaged gzip file
        raise LogError(f"{path}: {error}") from None
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from None


def read_stream(
    stream: IO[bytes], name: str, search: Search, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Line]:
    """Read the lines of an open log that are worth it; see ``read``."""
    yield from relevant_lines(_blocks(stream, name, progress), search)


def relevant_lines(blocks: Iterable[bytes], search: Search) -> Iterator[Line]:
    """Read the lines that are worth it; a gap in their numbers is where lines were passed over."""
    number, tail, awaited = 1, b"", 0
    for fresh in blocks:
        block = tail + fresh
        spans = []
        if awaited:
            stop, awaited = _end_of_lines(block, 0, awaited)
            spans.append((0, stop))
        position = len(tail)
        for hit in search.find(block, position):
            if hit < position:  # on the same line as the last one
                continue
            start = _start_of_line(block, hit, _BEFORE)
            stop, awaited = _end_of_lines(block, hit, _AFTER)
            if spans and start <= spans[-1][1]:
                start, _ = spans.pop()
            spans.append((start, stop))
            position, _ = _end_of_lines(block, hit, 1)
        given = 0
        for start, stop in spans:
            number += block.count(b"\n", given, start)
            for offset, text in enumerate(block[start:stop].removesuffix(b"\n").decode(errors="replace").split("\n")):
                yield from clean(number + offset, text)
            number += block.count(b"\n", start, stop)
            given = stop
        rest = max(given, _start_of_line(block, len(block), _BEFORE))
        number += block.count(b"\n", given, rest)
        tail = block[rest:]


def _end_of_lines(block: bytes, position: int, lines: int) -> tuple[int, int]:
    """Return where ``lines`` lines end, and how many of them are not in the block."""
    for done in range(lines):
        position = block.find(b"\n", position) + 1
        if not position:
            return len(block), lines - done
    return position, 0


def _start_of_line(block: bytes, position: int, lines: int) -> int:
    """Return where the line begins that is ``lines`` lines before a position."""
    for _ in range(lines + 1):
        position = block.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _blocks(stream: IO[bytes], name: str, progress: Callable[[int], None]) -> Iterator[bytes]:
    """Blocks of whole lines; a line longer than a block is cut, best between two states of its progress bar."""
    chunks = _chunks(stream, progress)
    first = next(chunks, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # what PowerShell's > writes
        chunks = (text.encode() for text in codecs.iterdecode(chain([first], chunks), "utf-16", errors="replace"))
    else:
        text = first.lstrip(b"\0")  # a log cut short while it was written to begins with these
        if len(text) - len(text.translate(None, _CONTROL)) > len(text) // 100:
            raise LogError(f"{name}: no text but binary data; give a log, plain or gzipped")
        chunks = chain([first], chunks)
    held = b""
    for chunk in chunks:
        chunk = held + chunk
        end = chunk.rfind(b"\n") + 1 or (len(chunk) > _BLOCK_BYTES and (chunk.rfind(b"\r") + 1 or len(chunk)))
        held = chunk[end:]
        if end:
            yield chunk[:end]
    if held:
        yield held


def _chunks(stream: IO[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    read_bytes = 0
    while chunk := stream.read(_BLOCK_BYTES):
        read_bytes += len(chunk)
        progress(read_bytes)
        yield chunk
