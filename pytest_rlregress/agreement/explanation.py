"""The answer to what a gap comes from: causes, and what remains with them undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def nats(number: float) -> str:
    """Return a number of nats as text: two digits, ``3e-7``."""
    return f"{number:.2g}".replace("e-0", "e-")


def name_tensors(names: Sequence[str]) -> str:
    """Return the first eight names of tensors, and how many more there are."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


@dataclass(frozen=True)
class Cause:
    """One cause of a gap.

    Attributes:
        name: Its name, as in docs/agreement.md: ``before-temperature``.
        who: Whose numbers it concerns: "the engine" or "the trainer".
        undone: What was changed to test it.
        sentence: What is the matter.
        remedy: What to do about it.
        remaining: Gap in nats a token with this and the causes before it undone.
    """

    name: str
    who: str
    undone: str
    sentence: str
    remedy: str
    remaining: float

    def __str__(self) -> str:
        """Say what was undone, what remained and what is the matter."""
        return f"{self.undone}, {nats(self.remaining)}: {self.sentence} ({self.remedy})"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(str):
    """How far apart two sides are, and why: the answer as a sentence, which pytest shows whole behind an ``assert``.

    Attributes:
        gap: Mean |difference of log-probability| in nats a token.
        floor: The same for two computations that are equal but for rounding: what agreement can be had.
        remaining: What is left of the gap with all ``causes`` undone.
        causes: What explains the gap, the larger part first. Empty where the sides agree, or nothing explains it.
        nearest: Where nothing explains it, what takes away at least half of it, the best first.
        agrees: The gap is rounding.
        notes: What could not be tested, and what else was found on the way.
    """

    gap: float
    floor: float
    remaining: float
    causes: tuple[Cause, ...] = ()
    nearest: tuple[Cause, ...] = ()
    agrees: bool = False
    notes: tuple[str, ...] = ()

    def __new__(
        cls,
        gap: float,
        floor: float,
        remaining: float,
        causes: tuple[Cause, ...] = (),
        nearest: tuple[Cause, ...] = (),
        agrees: bool = False,
        notes: tuple[str, ...] = (),
    ) -> Explanation:
        """Say the gap and what explains it, or what comes nearest."""
        if agrees:
            text = f"agrees: {nats(gap)} nats a token, rounding alone makes {nats(floor)}"
        elif causes:
            text = f"{nats(gap)} nats a token; " + "; ".join(map(str, causes))
        else:
            unexplained = f"{nats(gap)} nats a token, where rounding alone makes {nats(floor)}: unexplained"
            text = "; ".join([unexplained, *(f"nearest: {cause}" for cause in nearest[:1]), *notes])
        return super().__new__(cls, text)

    @property
    def explained(self) -> bool:
        """Whether the causes leave nothing but rounding; True where the sides agree, too."""
        return self.agrees or bool(self.causes)

    @property
    def names(self) -> list[str]:
        """The names of the causes."""
        return [cause.name for cause in self.causes]
