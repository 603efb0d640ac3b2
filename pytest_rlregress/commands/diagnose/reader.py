"""Read logs of any size: only the lines near something that may be a failure are decoded, with their numbers."""

from __future__ import annotations

import codecs
import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from pytest_rlregress.commands.diagnose.search import Search
from pytest_rlregress.logs.lines import Line, clean

#: The path that stands for standard input.
STDIN = Path("-")
_BLOCK_BYTES = 2**18
# Lines given around a hit. Every frame of a traceback is a hit, so these bridge what other workers print between.
_BEFORE, _AFTER = 3, 40
# There are many clues, and no log of this size takes long; what comes after it is searched for them near hits only.
_BYTES_FOR_CLUES = 2**22
# What a mail puts before the lines of what it answers.
_QUOTE_MARK = re.compile(rb"^(?:>[ \t]?)+", re.MULTILINE)
# Characters that no text has, or hardly any.
_CONTROL = bytes(set(range(32)) - set(b"\a\b\t\n\f\r\x1b"))


class LogError(ValueError):
    """A log that cannot be read; the message names it and says why."""


def name_of(path: Path) -> str:
    """Return what a log is called in messages."""
    return "standard input" if path == STDIN else str(path)


def read(path: Path, search: Search, watch: Callable[[bytes], None] = lambda block: None) -> Iterator[Line]:
    """Read the lines of a log, plain or gzipped, that are worth it: those near what its bytes are searched for.

    Args:
        path: ``STDIN`` for standard input.
        search: What is worth it.
        watch: Given every block of whole lines as it is read, for what is to be found beside.

    Raises:
        LogError: Missing, unreadable, a folder, or no text.
    """
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
            stream: Any = file
            if path != STDIN and stream.peek(2)[:2] == b"\x1f\x8b":
                stream = gzip.GzipFile(fileobj=file)
            yield from read_stream(stream, name_of(path), search, watch)
    except (EOFError, zlib.error) as error:  # a truncated or damaged gzip file
        raise LogError(f"{name_of(path)}: {error}") from None
    except OSError as error:
        raise LogError(f"{name_of(path)}: {error.strerror or error}") from None


def read_stream(
    stream: IO[bytes], name: str, search: Search, watch: Callable[[bytes], None] = lambda block: None
) -> Iterator[Line]:
    """Read the lines of an open log that are worth it; see ``read``."""
    yield from relevant_lines(_watched(_blocks(stream, name), watch), search)


def _watched(blocks: Iterable[bytes], watch: Callable[[bytes], None]) -> Iterator[bytes]:
    for block in blocks:
        watch(block)
        yield block


def relevant_lines(blocks: Iterable[bytes], search: Search) -> Iterator[Line]:
    """Read the lines that are worth it; a gap in their numbers is where lines were passed over."""
    number, tail, awaited, size = 1, b"", 0, 0
    for fresh in blocks:
        block = tail + fresh
        size += len(fresh)
        if size <= _BYTES_FOR_CLUES:
            search.look_for_clues(fresh)
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
            if size > _BYTES_FOR_CLUES:
                search.look_for_clues(block[start:stop])
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


def _blocks(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Blocks of whole lines; a line longer than a block is cut, best between two states of its progress bar.

    Where a mail quotes the log, without the marks of that.
    """
    chunks = iter(partial(stream.read, _BLOCK_BYTES), b"")
    first = next(chunks, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # what PowerShell's > writes
        texts = codecs.iterdecode(chain([first], chunks), "utf-16", errors="replace")
        chunks = (text.encode() for text in texts)
    else:
        text = first.lstrip(b"\0")  # a log cut short while it was written to begins with these
        if len(text) - len(text.translate(None, _CONTROL)) > len(text) // 100:
            raise LogError(f"{name}: no text but binary data; give a log, plain or gzipped")
        chunks = chain([first], chunks)
    unquoted = partial(_QUOTE_MARK.sub, b"") if _is_quoted(first) else bytes
    held = b""
    for chunk in chunks:
        chunk = held + chunk
        end = chunk.rfind(b"\n") + 1 or (len(chunk) > _BLOCK_BYTES and (chunk.rfind(b"\r") + 1 or len(chunk)))
        held = chunk[end:]
        if end:
            yield unquoted(chunk[:end])
    if held:
        yield unquoted(held)


def _is_quoted(text: bytes) -> bool:
    lines = [line for line in text.splitlines()[:-1] if line.strip()]
    return len(lines) > 1 and all(line.startswith(b">") for line in lines)
