"""Find the lines of a log that are worth reading: those near plain texts taken from the signatures."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_rlregress.catalogue import Failure, Signature
from pytest_rlregress.logs.lines import clean
from pytest_rlregress.util.literals import literals

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


class Search:
    """Finds every line that could show one of the failures, and few others; and the clues, each until it is found.

    There are too many texts to look for in gigabytes one by one. First both are compared without common characters:
    that leaves little of a log, and what is not in there is not in the log either.

    Attributes:
        clues: The clues found in what was searched.
    """

    def __init__(self, failures: Iterable[Failure]) -> None:
        signatures = [signature for failure in failures for signature in failure.signatures]
        texts = set(_ALWAYS)
        for signature in signatures:
            if is_words_only(signature) or signature.kind == "hung":
                texts |= {text.encode() for text in literal_parts(signature)}
            elif signature.exception:
                texts.add(signature.exception.rpartition(".")[2].encode())
        minimal = [one for one in texts if not any(other in one for other in texts - {one})]
        self._texts = list(map(_SiftedText, sorted(minimal)))
        self._wanted = {
            signature.clue: [_SiftedText(text.encode()) for text in sorted(literals(signature.clue))]
            for signature in signatures
            if signature.clue
        }
        self.clues: set[re.Pattern[str]] = set()

    def find(self, block: bytes, start: int) -> list[int]:
        """Return where in a block, from ``start`` on, one of the texts is."""
        once = block.translate(None, _SIEVES[0])
        sifted = once, once.translate(None, _SIEVES[1])
        for clue, texts in list(self._wanted.items()):
            if any(_is_on_a_line(clue, block, text.positions(block, sifted, start)) for text in texts):
                self.clues.add(clue)
                del self._wanted[clue]
        return sorted(position for text in self._texts for position in text.positions(block, sifted, start))


class _SiftedText:
    """A text to look for, and what a sieve leaves of it."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        once = text.translate(None, _SIEVES[0])
        twice = once.translate(None, _SIEVES[1])
        self._sieve = int(len(twice) >= _SIFTED)
        self._sifted = twice if self._sieve else once

    def positions(self, block: bytes, sifted: tuple[bytes, bytes], start: int) -> Iterable[int]:
        """Return where in a block the text is; ``sifted`` is what each sieve leaves of the block."""
        position = block.find(self._text, start) if self._sifted in sifted[self._sieve] else -1
        while position >= 0:
            yield position
            position = block.find(self._text, position + len(self._text))


def _is_on_a_line(clue: re.Pattern[str], block: bytes, positions: Iterable[int]) -> bool:
    """Return whether a clue is on one of the lines of these positions."""
    end = -1
    for position in positions:
        if position > end:
            begin, end = block.rfind(b"\n", 0, position) + 1, block.find(b"\n", position) % (len(block) + 1)
            lines = clean(0, block[begin:end].decode(errors="replace"))
            if any(clue.search(line.printed) for line in lines):
                return True
    return False


def is_words_only(signature: Signature) -> bool:
    """Return whether a signature is a message or a log's line alone, that needs no exception or crash around it."""
    return (
        bool(signature.message) != bool(signature.log)
        and signature.kind in (None, "failed")
        and not (signature.exception or signature.signal or signature.frames)
    )


def literal_parts(signature: Signature) -> set[str]:
    """Return texts, one of which is on every line that a message matches, also where it is wrapped once."""
    pattern = signature.message or signature.log
    texts = literals(pattern) if pattern else set()
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
