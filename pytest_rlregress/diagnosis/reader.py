"""Read logs of any size: only the lines near something that may be a failure are decoded, with their numbers.

Plain texts are searched for: those on every line that could show a failure, and those of the clues.
"""

from __future__ import annotations

import codecs
import gzip
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from ahocorasick_rs import AhoCorasick, BytesAhoCorasick, Implementation

from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.signatures import Example, Outcome, Signature
from pytest_rlregress.logs.lines import Line, clean

#: The path that stands for standard input.
STDIN = Path("-")
_BLOCK_BYTES = 2**18
# Lines given around a hit. Every frame of a traceback is a hit, so these bridge what other workers print between.
_BEFORE, _AFTER = 3, 40
# There are many clues, and no log of this size takes long; what comes after it is searched for them near hits only.
_BYTES_FOR_CLUES = 2**22
# Before each piece of the log that Docker's and Podman's interfaces give: the stream, and the length of the piece.
_FRAME, _FRAME_BYTES = re.compile(rb"[\x00-\x02]\x00{3}\x00"), 8
_QUOTE_MARK = re.compile(rb"^(?:>[ \t]?)+", re.MULTILINE)
# Characters that no text has, or hardly any.
_CONTROL = bytes(set(range(32)) - set(b"\a\b\t\n\f\r\x1b"))
# What all failures have in common in a log: words of exceptions and levels, of handlers, shells, kernels and builders.
_ALWAYS = (
    b'Error|Exception|ERROR|FATAL|CRITICAL|fatal error|Failed |failed: |"error"|", line |Traceback (most recent'
    b"|CUDA error|NCCL error|subprocess-exited|make: ***|build stopped"
    b"|Fatal Python error|SIG|Caught signal|Floating point exception|backtrace|Segfault|egmentation fault|Bus error"
    b"|(core dumped)|killed|Killed|exit code|exitcode|Exit Code|EXIT CODE|exit status|code=dumped|exited|unexpectedly"
    b"|segfault at |oom-kill|oom_kill|Out Of Memory|trap divide|general protection|terminate called|Aborted"
    b"|double free|free(): invalid|malloc(): |munmap_chunk(): |corrupted |stack smashing"
).split(b"|")
# What only the log of a run with this trainer has.
_TRAINERS: dict[str, tuple[Example, ...]] = {name: (Example(f"{{printed_by_{name}}}"),) for name in ("verl", "trl")}


class Search:
    """Finds every line that could show one of the failures, and few others; and the clues, each until it is found.

    Attributes:
        clues: Those found in what was searched.
    """

    def __init__(self, failures: Iterable[Failure]) -> None:
        self._all = [(failure, signature) for failure in failures for signature in failure.signatures]
        self._anywhere: list[int] = []  # those that no text of a message tells
        by_anchor: dict[str, list[int]] = {}
        by_clue: dict[bytes, list[tuple[Example, ...]]] = {}
        texts = set(_ALWAYS)
        for number, (_, signature) in enumerate(self._all):
            if signature.is_line:
                texts |= {anchor.encode() for anchor in signature.anchors}
            elif signature.exception:
                texts.add(signature.exception.encode())
            if not all(signature.anchors) or not signature.anchors:
                self._anywhere.append(number)
            for anchor in filter(None, signature.anchors):
                by_anchor.setdefault(anchor, []).append(number)
        for clues in (*_TRAINERS.values(), *(signature.clues for _, signature in self._all)):
            for anchor in {anchor for clue in clues for anchor in clue.anchors}:
                by_clue.setdefault(anchor.encode(), []).append(clues)
        self._lines = BytesAhoCorasick(sorted(texts), implementation=Implementation.DFA)
        self._anchors, self._by_anchor = AhoCorasick(list(by_anchor)), list(by_anchor.values())
        self._clues, self._wanted = BytesAhoCorasick(list(by_clue)), list(by_clue.values())
        self.clues: set[tuple[Example, ...]] = set()

    @property
    def trainer(self) -> str:
        """The trainer whose lines were found; "" where there are none, or those of several."""
        found = [name for name, clues in _TRAINERS.items() if clues in self.clues]
        return found[0] if len(found) == 1 else ""

    def find(self, block: bytes, start: int) -> list[int]:
        """Return where in a block, from ``start`` on, one of the texts is."""
        return [start + begin for _, begin, _ in self._lines.find_matches_as_indexes(memoryview(block)[start:])]

    def look_for_clues(self, block: bytes) -> None:
        """Look for the clues that are not found yet on the lines of a block."""
        last: dict[int, int] = {}  # where the last line with a text ended
        for number, at, _ in self._clues.find_matches_as_indexes(block, overlapping=True):
            if self._wanted[number] and at >= last.get(number, 0):
                end = block.find(b"\n", at)
                last[number] = end if end >= 0 else len(block)
                text = block[block.rfind(b"\n", 0, at) + 1 : last[number]].decode(errors="replace")
                lines = [line.printed for line in clean(0, text)]
                found = {
                    clues
                    for clues in self._wanted[number]
                    if any(clue.search(line) for line in lines for clue in clues)
                }
                self.clues |= found
                self._wanted[number] = [clues for clues in self._wanted[number] if clues not in found]

    def candidates(self, text: str) -> list[tuple[Failure, Signature]]:
        """Return the signatures that a text may bear, in the order of the catalogue."""
        encodable = text.encode(errors="replace").decode()  # a test of this process may print half a character
        found = self._anchors.find_matches_as_indexes(" ".join(encodable.split()), overlapping=True)
        numbers = {*self._anywhere, *(number for anchor, _, _ in found for number in self._by_anchor[anchor])}
        return [self._all[number] for number in sorted(numbers)]

    def match(self, outcome: Outcome) -> tuple[tuple[Failure, Signature], ...]:
        """Return the signatures that an outcome bears."""
        return tuple(one for one in self.candidates(outcome.message) if one[1].matches(outcome))


def relevant_lines(blocks: Iterable[bytes], search: Search) -> Iterator[Line]:
    """Read the lines near a hit of the search; a gap in their numbers is where lines were passed over.

    Args:
        blocks: Of whole lines.
    """
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


def _unframed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Take away the eight bytes that a container engine's log has before each piece: its stream and its length."""
    held = b""
    for chunk in chunks:
        held += chunk
        pieces = []
        while len(held) >= _FRAME_BYTES and _FRAME.match(held):
            end = _FRAME_BYTES + int.from_bytes(held[4:_FRAME_BYTES], "big")
            if len(held) < end:
                break
            pieces.append(held[_FRAME_BYTES:end])
            held = held[end:]
        if len(held) >= _FRAME_BYTES and not _FRAME.match(held):  # no frames any more
            pieces.append(held)
            held = b""
        if pieces:
            yield b"".join(pieces)
    yield held[_FRAME_BYTES:] if _FRAME.match(held) else held


class LogError(ValueError):
    """A log that cannot be read; the message names it and says why."""


def name_of(path: Path) -> str:
    """Return what a log is called in messages."""
    return "standard input" if path == STDIN else str(path)


def read(path: Path) -> Iterator[bytes]:
    """Read a log, plain or gzipped, as blocks of whole lines.

    Args:
        path: ``STDIN`` for standard input.

    Raises:
        LogError: Missing, unreadable, a folder, or no text.
    """
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
            stream: Any = file
            if path != STDIN and stream.peek(2)[:2] == b"\x1f\x8b":
                stream = gzip.GzipFile(fileobj=file)
            yield from read_stream(stream, name_of(path))
    except (EOFError, zlib.error) as error:  # a truncated or damaged gzip file
        raise LogError(f"{name_of(path)}: {error}") from None
    except OSError as error:
        raise LogError(f"{name_of(path)}: {error.strerror or error}") from None


def read_stream(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Read an open log as blocks; a line longer than a block is cut, best between two states of its progress bar."""
    chunks: Iterator[bytes] = iter(partial(stream.read, _BLOCK_BYTES), b"")
    first = next(chunks, b"")
    if _FRAME.match(first):
        chunks = _unframed(chain([first], chunks))
        first = next(chunks, b"")
    if len(first) < _BLOCK_BYTES and not first.strip():
        raise LogError(f"{name}: it is empty, so nothing is known of what was to write it")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # what PowerShell's > writes
        texts = codecs.iterdecode(chain([first], chunks), "utf-16", errors="replace")
        chunks = (text.encode() for text in texts)
    else:
        text = first.lstrip(b"\0")  # a log cut short while it was written to begins with these
        if len(text) - len(text.translate(None, _CONTROL)) > len(text) // 100:
            raise LogError(f"{name}: no text but binary data; give a log, plain or gzipped")
        chunks = chain([first], chunks)
    begin = [line for line in first.splitlines()[:-1] if line.strip()]
    quoted = len(begin) > 1 and all(line.startswith(b">") for line in begin)  # in a mail or an issue
    held = b""
    for chunk in chunks:
        chunk = held + chunk
        end = chunk.rfind(b"\n") + 1 or (len(chunk) > _BLOCK_BYTES and (chunk.rfind(b"\r") + 1 or len(chunk)))
        held = chunk[end:]
        if end:
            yield _QUOTE_MARK.sub(b"", chunk[:end]) if quoted else chunk[:end]
    if held:
        yield _QUOTE_MARK.sub(b"", held) if quoted else held
