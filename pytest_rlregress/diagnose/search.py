"""Find the lines of a log that are worth reading: those near plain texts taken from the signatures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate

from pytest_rlregress.catalogue import Failure, Signature
from pytest_rlregress.logs.lines import clean
from pytest_rlregress.util.literals import Pattern, literals

# What all failures have in common in a log. The last is what an orchestrator prints when no rollout comes back.
_ALWAYS = (
    b"Error",
    b"Exception",
    b"ERROR",
    b"fatal error",
    b"subprocess-exited",
    b'"error"',
    b'", line ',
    b"Traceback (most recent",
    b"Fatal Python error",
    b"FATAL",
    b"CRITICAL",
    b"SIG",
    b"Caught signal",
    b"Floating point exception",
    b"Failed ",
    b"failed: ",
    b"backtrace",
    b"Segfault",
    b"egmentation fault",
    b"(core dumped)",
    b"killed",
    b"Killed",
    b"exit code",
    b"exitcode",
    b"Exit Code",
    b"EXIT CODE",
    b"exit status",
    b"code=dumped",
    b"exited",
    b"unexpectedly",
    b"segfault at ",
    b"oom-kill",
    b"oom_kill",
    b"Out Of Memory",
    b"trap divide",
    b"general protection",
    b"terminate called",
    b"Aborted",
    b"Bus error",
    b"double free",
    b"free(): invalid",
    b"malloc(): ",
    b"munmap_chunk(): ",
    b"corrupted ",
    b"stack smashing",
    b"CUDA error",
    b"NCCL error",
    b"make: ***",
    b"build stopped",
    b" rollouts",
)
_DIGITS = b"0123456789"
# What a log is mostly made of, bars' blocks included: each leaves a half of it or less.
_SIEVES = (b" .:_-/=()[]{}|#%+\r\t\x1betaoins\xe2\x96\x88", b"lducpmgh,", b"rkvfyw\x8c")
_SHORTEST, _DISTINCTIVE, _QUOTABLE = 6, 10, 16


class Search:
    """Finds every line that could show one of the failures, and few others; and the clues, each until it is found.

    There are too many texts to look for in gigabytes one by one. First both are compared without common characters,
    and lines that are alike without them only once: that leaves little of a log, and what is not in there is not in the
    log either.

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
        self._texts = _without_longer_ones(frozenset(texts))
        self._wanted = {
            signature.clue: [_sift(text.encode()) for text in sorted(literals(signature.clue))]
            for signature in signatures
            if signature.clue
        }
        self.clues: set[Pattern] = set()

    def look_for_clues(self, block: bytes) -> None:
        """Look for the clues that are not found yet on the lines of a block."""
        sifted = _sifted(block)
        for clue, texts in list(self._wanted.items()):
            if any(_is_on_a_line(clue, block, text.positions(block, sifted, 0)) for text in texts):
                self.clues.add(clue)
                del self._wanted[clue]

    def find(self, block: bytes, start: int) -> list[int]:
        """Return where in a block, from ``start`` on, one of the texts is."""
        sifted = _sifted(block)
        return sorted(position for text in self._texts for position in text.positions(block, sifted, start))


def _sifted(text: bytes) -> tuple[bytes, ...]:
    """Return what is left of a text without digits, then after each sieve; lines that are then alike only once."""
    plain = b"\n".join(set(text.translate(None, _DIGITS).split(b"\n")))
    once = b"\n".join(set(plain.translate(None, _SIEVES[0]).split(b"\n")))
    return plain, *accumulate(_SIEVES[1:], lambda left, sieve: left.translate(None, sieve), initial=once)


def _is_rare(part: bytes) -> bool:
    """Return whether what sieves left of a text is hardly in what they leave of a log; capitals are rare."""
    return len(part) >= 3 or (len(part) == 2 and part.istitle())


class _SiftedText:
    """A text to look for, and the least that sieves leave of it that is still enough to look for first."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        left = _sifted(text)
        self._sieve = max((sieve for sieve, part in enumerate(left) if _is_rare(part)), default=0)
        self._plain, self._sifted = left[0], left[self._sieve]

    def positions(self, block: bytes, sifted: Sequence[bytes], start: int) -> Iterable[int]:
        """Return where in a block the text is; ``sifted`` is what each sieve leaves of the block."""
        maybe = self._sifted in sifted[self._sieve] and self._plain in sifted[0]
        position = block.find(self._text, start) if maybe else -1
        while position >= 0:
            yield position
            position = block.find(self._text, position + len(self._text))


_sift = cache(_SiftedText)


@cache
def _without_longer_ones(texts: frozenset[bytes]) -> list[_SiftedText]:
    """Return the texts that contain no other one, in order."""
    return [_sift(one) for one in sorted(texts) if not any(other in one for other in texts - {one})]


def _is_on_a_line(clue: Pattern, block: bytes, positions: Iterable[int]) -> bool:
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


def is_quotable(signature: Signature) -> bool:
    """Return whether a signature of an exception has a message that says enough where its class is left out.

    As in an ERROR record of a program that caught the exception, and logs no more than its message.
    """
    return (
        signature.exception is not None
        and signature.message is not None
        and signature.kind in (None, "failed")
        and not (signature.signal or signature.frames or signature.log)
        and all(len(text) >= _QUOTABLE for text in literals(signature.message))
    )


def literal_parts(signature: Signature) -> set[str]:
    """Return texts, one of which is on every line that a message matches, also where it is wrapped once."""
    pattern = signature.message or signature.log
    texts = literals(pattern) if pattern else frozenset()
    return {part for text in texts if len(text) >= _SHORTEST for part in _unsplittable_parts(text)}


def _unsplittable_parts(text: str) -> list[str]:
    """Return a long word of a text, or two halves of which no single wrap cuts both."""
    words = [word for word in text.split() if len(word) >= _DISTINCTIVE]
    if words:
        return [max(words, key=lambda word: len(_sifted(word.encode())[1]))]  # found the fastest
    spaces = [at for at, character in enumerate(text) if character == " "]
    for at in sorted(spaces, key=lambda at: abs(at - len(text) // 2)):
        halves = [text[:at], text[at + 1 :]]
        if all(len(half) >= _SHORTEST and " " in half for half in halves):
            return halves
    return [text]
