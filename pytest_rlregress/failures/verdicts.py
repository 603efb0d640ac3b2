"""The verdicts, and the judge that comes to one from a test's outcome. Pure functions, no pytest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from pytest_rlregress.failures.signatures import Outcome as Outcome
from pytest_rlregress.failures.silent import SilentFailure

if TYPE_CHECKING:
    from pytest_rlregress.failures.catalogue import Failure


_SILENT = f"{SilentFailure.__module__}.{SilentFailure.__qualname__}"


class Rank(IntEnum):
    """How bad a test's result is: a test got worse if its rank rose."""

    NOTHING = -1  # nothing about the stack: a skip, an interrupted test
    GOOD = 0
    DOCUMENTED = 1
    FAILING = 2


class Verdict(StrEnum):
    """What a test says about its failure on this stack, the gravest first.

    Attributes:
        letter: In pytest's progress line: capital where the verdict fails the run.
        rank: For comparing two runs.
        sentence: What it means.
    """

    letter: str
    rank: Rank
    sentence: str

    def __new__(cls, word: str, letter: str = "", rank: Rank = Rank.NOTHING, sentence: str = "") -> Verdict:
        """Make a string of the word, with what is known of it."""
        verdict = str.__new__(cls, word)
        verdict._value_, verdict.letter, verdict.rank, verdict.sentence = word, letter, rank, sentence
        return verdict

    CRASHED = "crashed", "K", Rank.FAILING, "the process died of a signal"
    HUNG = "hung", "H", Rank.FAILING, "it did not end in time"
    REGRESSED = "regressed", "G", Rank.FAILING, "the remedy does not work"
    CHANGED = "changed", "C", Rank.FAILING, "it failed some other way than documented"
    RETURNED = "returned", "B", Rank.FAILING, "declared absent since a release, yet it came out"
    REPRODUCED = "reproduced", "r", Rank.DOCUMENTED, "the documented failure came out: it still happens here"
    ABSENT = "absent", "a", Rank.GOOD, "the failing act did not fail"
    HELD = "held", "h", Rank.GOOD, "the remedy works"
    UNAVAILABLE = "unavailable", "u", Rank.NOTHING, "a component, an interface or the hardware is missing"
    BLOCKED = "blocked", "b", Rank.NOTHING, "a component that it needs does not work here"

    @property
    def fails(self) -> bool:
        """Whether it fails a run whatever the settings."""
        return self.rank is Rank.FAILING


#: The word of a test whose bad verdict is one that the user's file of expectations has.
EXPECTED = "expected"


class NumberWord(StrEnum):
    """How a training step's number stands to what its trusted nights allow."""

    WATCHED = "watched"
    INSIDE = "inside"
    ACCEPTED = "accepted"
    OUTSIDE = "outside"
    MISSING = "missing"

    @property
    def is_bad(self) -> bool:
        """Whether the number is told as a failing test is."""
        return self in (NumberWord.OUTSIDE, NumberWord.MISSING)


_RANKS: dict[str, Rank] = {
    **{verdict.value: verdict.rank for verdict in Verdict},
    **dict.fromkeys(
        (EXPECTED, "passed", "xfailed", "xpassed"), Rank.GOOD
    ),  # where xfail is strict, pytest's word is "failed"
    **dict.fromkeys((NumberWord.WATCHED, NumberWord.INSIDE, NumberWord.ACCEPTED), Rank.GOOD),
    **dict.fromkeys((NumberWord.OUTSIDE, NumberWord.MISSING), Rank.FAILING),
    **dict.fromkeys(("failed", "error", "uncollected"), Rank.FAILING),  # the last: a file that cannot be imported
}


def rank(word: str) -> Rank:
    """Return the rank of a verdict, or of pytest's word for a test without one."""
    return _RANKS.get(word, Rank.NOTHING)


@dataclass(frozen=True)
class Judgement:
    """A verdict, whether it fails the run, and a line that says why."""

    verdict: Verdict
    fails: bool
    note: str = ""


def judge(
    side: str,
    outcome: Outcome,
    failure: Failure,
    *,
    expected: str = Verdict.REPRODUCED,
    gone: str | None = None,
    strict: bool = False,
    promised: bool = False,
    driven: bool = False,
    untried: str = "",
) -> Judgement | None:
    """Judge one test of a failure.

    None where the test did not come as far as the act by a fault of its own, or has a mistake: that says nothing about
    the failure, and stays an error of the test. A component that fails before the act makes it ``unavailable``, unless
    the test is known to be driven on these releases.

    Args:
        side: ``reproduces`` or ``guards``.
        outcome: What came out of the test.
        failure: The catalogue's entry: its signatures identify the documented failure.
        expected: Verdict the catalogue expects of the reproduces side here: ``reproduced`` or ``absent``.
        gone: The installed release since which the failure is declared absent, or None.
        strict: Whether ``absent`` where ``reproduced`` was expected fails the run.
        promised: Whether ``--hw`` promised that this test can run, so that a skip of a guard fails the run.
        driven: Whether these are the releases of the lock, on which every test is driven, or ``--rl-require`` promised
            a component that they touch.
        untried: Which releases here are outside of those that the failure was tried with, as the first words of a bad
            verdict.
    """
    if outcome.kind == "blocked":
        return Judgement(Verdict.BLOCKED, False, outcome.message)
    if outcome.kind == "skipped":
        return Judgement(Verdict.UNAVAILABLE, side == "guards" and promised, outcome.message)
    documented = outcome.phase == "call" and bears(outcome, failure)
    if outcome.lacks and not documented:
        return Judgement(Verdict.UNAVAILABLE, False, outcome.lacks)
    if outcome.undriven and not driven:
        return Judgement(Verdict.UNAVAILABLE, side == "guards" and promised, outcome.undriven)
    if outcome.kind != "passed" and not documented and (outcome.phase == "setup" or outcome.mistake):
        return None
    if side == "reproduces":
        judgement = _reproduces(outcome, failure, documented, expected, gone, strict)
    else:
        judgement = _guards(outcome)
    if judgement.verdict.fails and untried:
        return replace(judgement, note=f"{untried}: {judgement.note}")
    return judgement


def bears(outcome: Outcome, failure: Failure) -> bool:
    """Return whether an outcome is a silent failure, or bears a signature that a failure's tests are judged by."""
    return _SILENT in outcome.exceptions or any(signature.matches(outcome) for signature in failure.judging)


def _nearest(outcome: Outcome, failure: Failure) -> str:
    """Say which signature an outcome comes nearest to, and what does not match; "" if nothing of any matches."""
    compared = [signature.compare(outcome) for signature in failure.judging]
    shares = [sum(found.values()) / len(found) for found in compared]
    if not any(shares):
        return ""
    number = shares.index(max(shares))
    same, other = ([what for what, fits in compared[number].items() if fits is wanted] for wanted in (True, False))
    verb = "matches" if len(same) == 1 else "match"
    negated = "does not" if len(other) == 1 else "do not"
    alike, unlike = (" and the ".join(words) for words in (same, other))
    return f"signature {number + 1}: the {alike} {verb}, the {unlike} {negated}: "


def _reproduces(
    outcome: Outcome, failure: Failure, documented: bool, expected: str, gone: str | None, strict: bool
) -> Judgement:
    if outcome.kind == "passed":
        if expected == Verdict.ABSENT:
            return Judgement(Verdict.ABSENT, False)
        return Judgement(Verdict.ABSENT, strict, "the failing call did no harm, which was not expected on this stack")
    if documented and gone:
        return Judgement(Verdict.RETURNED, True, f"reproduced on {gone}")
    if documented:
        note = "" if expected == Verdict.REPRODUCED else "not expected on this stack"
        return Judgement(Verdict.REPRODUCED, False, note)
    if outcome.kind in ("crashed", "hung"):
        return Judgement(Verdict(outcome.kind), True, outcome.message)
    nearest = _nearest(outcome, failure) or "no documented signature: "
    return Judgement(Verdict.CHANGED, True, nearest + first_line(outcome))


def _guards(outcome: Outcome) -> Judgement:
    if outcome.kind == "passed":
        return Judgement(Verdict.HELD, False)
    if outcome.kind in ("crashed", "hung"):
        return Judgement(Verdict(outcome.kind), True, outcome.message)
    return Judgement(Verdict.REGRESSED, True, first_line(outcome))


def first_line(outcome: Outcome) -> str:
    """Say in a line what came out: the exception's class and the first line of its message."""
    name = outcome.exceptions[0].rpartition(".")[2] if outcome.exceptions else "failed"
    line = next((line.strip() for line in outcome.message.splitlines() if line.strip()), "")
    return f"{name}: {line}" if line else name
