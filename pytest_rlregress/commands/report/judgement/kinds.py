"""What became of a test on a platform, against the last run in which it was good."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What became of a test, the most urgent first.

    Attributes:
        sentence: What it means.
    """

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Kind:
        """Make a string of the word, with what it means."""
        kind = str.__new__(cls, word)
        kind._value_, kind.sentence = word, sentence
        return kind

    REGRESSION = "regression", "worse, and every run since agrees, two at least: tonight's rerun, or last night's"
    HARDWARE_CHANGE = "hardware change", "the same, on other hardware than when it was good: not comparable"
    UNCONFIRMED = "unconfirmed", "worse, in the only run since: run it again"
    NEW_FAILING = "new failing", "fails, and has not run on this hardware before: nothing to compare with"
    FLAKE = "flake", "a rerun in the same night, with nothing changed, disagrees"
    LOST = (
        "lost",
        "had a result in the run before, and has none tonight though the hardware ran: a skip is never a pass",
    )
    REPAIRED = "repaired", "better than in the run before"
    KNOWN = "known", "bad as before: it has not been better on this hardware"
    STEADY = "steady", "good as before; or seen for the first time, and it does not fail"


#: Kinds that say something got worse, or may have.
WORSE = (Kind.REGRESSION, Kind.HARDWARE_CHANGE, Kind.UNCONFIRMED, Kind.FLAKE)
#: Kinds of which nobody need be told.
QUIET = (Kind.KNOWN, Kind.STEADY)
#: Kinds that are told of in full; the rest is counted.
TOLD = tuple(kind for kind in Kind if kind not in QUIET)
