"""Find the lines of a log that are worth reading, and the signatures that a text may bear, by plain texts in both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ahocorasick_rs import AhoCorasick, BytesAhoCorasick, Implementation

from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.signatures import Example, Signature
from pytest_rlregress.logs.lines import clean

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
# What only the log of a run with this trainer has.
_TRAINERS: dict[str, tuple[Example, ...]] = {name: (Example(f"{{printed_by_{name}}}"),) for name in ("verl", "trl")}


@dataclass(frozen=True)
class SignatureCandidate:
    """A signature that a text may bear, and the failure that has it."""

    failure: Failure = field(hash=False)
    signature: Signature


class Search:
    """Finds every line that could show one of the failures, and few others; and the clues, each until it is found.

    Attributes:
        clues: Those found in what was searched.
    """

    def __init__(self, failures: Iterable[Failure]) -> None:
        self._all = [SignatureCandidate(failure, one) for failure in failures for one in failure.signatures]
        self._anywhere: list[int] = []  # those that no text of a message tells
        by_anchor: dict[str, list[int]] = {}
        clues = [*_TRAINERS.values()]
        texts = set(_ALWAYS)
        for number, candidate in enumerate(self._all):
            signature = candidate.signature
            if signature.is_line:
                texts |= {anchor.encode() for anchor in signature.anchors}
            elif signature.exception:
                texts.add(signature.exception.encode())
            if not all(signature.anchors) or not signature.anchors:
                self._anywhere.append(number)
            for anchor in filter(None, signature.anchors):
                by_anchor.setdefault(anchor, []).append(number)
            clues.append(signature.clues)
        by_clue: dict[bytes, list[tuple[Example, ...]]] = {}
        for one in clues:
            for anchor in {anchor for clue in one for anchor in clue.anchors}:
                by_clue.setdefault(anchor.encode(), []).append(one)
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
        for number, begin, _ in self._clues.find_matches_as_indexes(block, overlapping=True):
            if self._wanted[number] and begin >= last.get(number, 0):
                start, last[number] = _line_around(block, begin)
                text = block[start : last[number]].decode(errors="replace")
                lines = [line.printed for line in clean(0, text)]
                found = {clues for clues in self._wanted[number] if _is_on(clues, lines)}
                self.clues |= found
                self._wanted[number] = [clues for clues in self._wanted[number] if clues not in found]

    def candidates(self, text: str) -> list[SignatureCandidate]:
        """Return the signatures that a text may bear, in the order of the catalogue."""
        found = self._anchors.find_matches_as_indexes(" ".join(text.split()), overlapping=True)
        numbers = {*self._anywhere, *(number for anchor, _, _ in found for number in self._by_anchor[anchor])}
        return [self._all[number] for number in sorted(numbers)]


def _line_around(block: bytes, position: int) -> tuple[int, int]:
    return block.rfind(b"\n", 0, position) + 1, block.find(b"\n", position) % (len(block) + 1)


def _is_on(clues: Iterable[Example], lines: Iterable[str]) -> bool:
    return any(clue.search(line) for line in lines for clue in clues)
