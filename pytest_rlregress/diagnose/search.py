"""Find the lines of a log that are worth reading: those near plain texts taken from the signatures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

from pytest_rlregress.catalogue import Failure, Signature

# What all failures have in common in a log. The last is what an orchestrator prints when no rollout comes back.
_ALWAYS = (
    b"Error",
    b"Exception",
    b'", line ',
    b"Traceback (most recent",
    b"Fatal Python error",
    b"*** SIG",
    b"Segfault",
    b"Segmentation fault",
    b"(core dumped)",
    b"Killed",
    b"double free",
    b"free(): invalid",
    b"malloc(): ",
    b"munmap_chunk(): ",
    b"corrupted ",
    b"stack smashing",
    b"terminate called",
    b"CUDA error",
    b"NCCL error",
    b" rollouts",
)
# What a log is mostly made of: the first leaves a quarter of it, both leave a tenth.
_SIEVES = (b"0123456789 .:_-/=()[]{}|#%+\n\r\t\x1betaoins", b"lducpmgh")
_SIFTED = 3
_SHORTEST, _DISTINCTIVE = 6, 10
_TOKEN = re.compile(
    r"""
    \\(?P<escaped>[^\w])
  | \((?:\?:)?(?P<words>[\w -]+(?:\|[\w -]+)*)\)
  | (?P<special>\\. | \[\^?\]?(?:\\.|[^\]])*\] | \{\d*,?\d*\} | [.^$()|*+?])
  | (?P<plain>.)
    """,
    re.DOTALL | re.VERBOSE,
)


class Search:
    """Finds every line that could show one of the failures, and few others.

    There are too many texts to look for in gigabytes one by one. First both are compared without common characters:
    that leaves little of a log, and what is not in there is not in the log either.
    """

    def __init__(self, failures: Iterable[Failure]) -> None:
        texts = set(_ALWAYS)
        for signature in (signature for failure in failures for signature in failure.signatures):
            if is_message_only(signature) or signature.kind == "hung":
                texts |= {text.encode() for text in literal_parts(signature)}
            elif signature.exception:
                texts.add(signature.exception.rpartition(".")[2].encode())
        minimal = [one for one in texts if not any(other in one for other in texts - {one})]
        once, twice = _SIEVES
        self._sieves: tuple[tuple[bytes, list[tuple[bytes, bytes]]], ...] = ((once, []), (twice, []))
        for text in sorted(minimal):
            sifted = text.translate(None, once)
            more = sifted.translate(None, twice)
            enough = len(more) >= _SIFTED
            self._sieves[enough][1].append((text, more if enough else sifted))

    def find(self, block: bytes, start: int) -> list[int]:
        """Return where in a block, from ``start`` on, one of the texts is."""
        found, sifted_block = [], block
        for sieve, texts in self._sieves:
            sifted_block = sifted_block.translate(None, sieve)
            for text, sifted in texts:
                position = block.find(text, start) if sifted in sifted_block else -1
                while position >= 0:
                    found.append(position)
                    position = block.find(text, position + len(text))
        return sorted(found)


def is_message_only(signature: Signature) -> bool:
    """Return whether a signature is a message alone, that needs no exception or crash around it."""
    return (
        signature.message is not None
        and signature.kind in (None, "failed")
        and not (signature.exception or signature.signal or signature.frames or signature.log)
    )


def literal_parts(signature: Signature) -> set[str]:
    """Return texts, one of which is on every line that a message matches, also where it is wrapped once."""
    pattern = signature.message or signature.log
    if pattern is None or pattern.flags & re.IGNORECASE:
        return set()
    longest = [max(runs, key=len) for runs in _literal_runs(pattern.pattern)]
    texts = {"".join(pieces).strip() for run in longest for pieces in product(*run)}
    return {part for text in texts if len(text) >= _SHORTEST for part in _unsplittable_parts(text)}


def _unsplittable_parts(text: str) -> list[str]:
    """Return a long word of a text, or two halves of which no single wrap cuts both."""
    word = max(text.split(), key=len)
    if len(word) >= _DISTINCTIVE:
        return [word]
    spaces = [at for at, character in enumerate(text) if character == " "]
    for at in sorted(spaces, key=lambda at: abs(at - len(text) // 2)):
        halves = [text[:at], text[at + 1 :]]
        if all(len(half) >= _SHORTEST and " " in half for half in halves):
            return halves
    return [text]


def _literal_runs(pattern: str) -> list[list[list[tuple[str, ...]]]]:
    """Return characters in a row that every match has, for each of a pattern's outermost alternatives."""
    alternatives: list[list[list[tuple[str, ...]]]] = [[[]]]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        runs, special = alternatives[-1], token["special"]
        piece = token["escaped"] or token["plain"]
        if special and special[0] in "?*{" and runs[-1]:
            runs[-1].pop()
        if depth == 0 and piece:
            runs[-1].append((piece,))
        elif depth == 0 and token["words"]:
            runs[-1].append(tuple(token["words"].split("|")))
        else:
            runs.append([])
        depth += (special == "(") - (special == ")")
        if special == "|" and depth == 0:
            alternatives.append([[]])
    return alternatives
