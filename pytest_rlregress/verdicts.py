"""The verdicts, and the judge that comes to one from a test's outcome. Pure functions, no pytest."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from pytest_rlregress.util.text import on_one_line

if TYPE_CHECKING:
    from pytest_rlregress.catalogue import Failure, Signature


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


_RANKS = {
    **{verdict.value: verdict.rank for verdict in Verdict},
    **dict.fromkeys(("passed", "xfailed", "xpassed"), Rank.GOOD),  # where xfail is strict, pytest's word is "failed"
    **dict.fromkeys(("failed", "error"), Rank.FAILING),
}


def rank(word: str) -> Rank:
    """The rank of a verdict, or of pytest's word for a test without one."""
    return _RANKS.get(word, Rank.NOTHING)


@dataclass(frozen=True)
class Outcome:
    """What came out of a test, whichever way it ended.

    Attributes:
        kind: ``passed``, ``failed`` (an exception), ``skipped``, ``crashed`` (the process died) or ``hung``.
        phase: ``setup`` or ``call``: where it ended.
        exceptions: Dotted class names of the exception and of its bases, most derived first.
        message: ``str(exception)``, the reason of a skip, or how the process died.
        frames: ``file:function`` of the traceback or of the stack at death.
        signal: Name of the signal the process died of, such as ``SIGFPE``.
        log: What the process wrote to its log during the test.
    """

    kind: str
    phase: str = "call"
    exceptions: tuple[str, ...] = ()
    message: str = ""
    frames: tuple[str, ...] = ()
    signal: str | None = None
    log: str = ""


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
) -> Judgement:
    """Judge one test of a failure.

    Args:
        side: ``reproduces`` or ``guards``.
        outcome: What came out of the test.
        failure: The catalogue's entry: its signatures identify the documented failure.
        expected: Verdict the catalogue expects of the reproduces side here: ``reproduced`` or ``absent``.
        gone: The installed release since which the failure is declared absent, or None.
        strict: Whether ``absent`` where ``reproduced`` was expected fails the run.
        promised: Whether ``--hw`` promised that this test can run, so that a skip of a guard fails the run.
    """
    if outcome.kind == "skipped":
        return Judgement(Verdict.UNAVAILABLE, side == "guards" and promised, outcome.message)
    return _reproduces(outcome, failure, expected, gone, strict) if side == "reproduces" else _guards(outcome)


def bears(outcome: Outcome, failure: Failure) -> bool:
    """Whether an outcome bears any of a failure's signatures."""
    return any(matches(signature, outcome) for signature in failure.signatures)


def matches(signature: Signature, outcome: Outcome) -> bool:
    """Whether an outcome bears a documented signature: every key that the signature gives must match."""
    if signature.kind and signature.kind != outcome.kind:
        return False
    wanted = signature.exception
    if wanted and not any(wanted in (name, name.rpartition(".")[2]) for name in outcome.exceptions):
        return False
    if signature.message and not any(map(signature.message.search, (outcome.message, on_one_line(outcome.message)))):
        return False
    if signature.signal and outcome.signal != signature.signal:
        return False
    if signature.log and not signature.log.search(outcome.log):
        return False
    return all(any(frame.search(seen) for seen in outcome.frames) for frame in signature.frames)


def _guards(outcome: Outcome) -> Judgement:
    if outcome.kind == "passed":
        return Judgement(Verdict.HELD, False)
    if outcome.kind in ("crashed", "hung"):
        return Judgement(Verdict(outcome.kind), True, outcome.message)
    return Judgement(Verdict.REGRESSED, True, _first_line(outcome))


def _reproduces(outcome: Outcome, failure: Failure, expected: str, gone: str | None, strict: bool) -> Judgement:
    if outcome.kind == "passed":
        if expected == Verdict.ABSENT:
            return Judgement(Verdict.ABSENT, False)
        return Judgement(Verdict.ABSENT, strict, "upstream fixed it: the workaround may go")
    documented = outcome.phase == "call" and bears(outcome, failure)
    if documented and gone:
        return Judgement(Verdict.RETURNED, True, f"reproduced on {gone}")
    if documented:
        note = "" if expected == Verdict.REPRODUCED else "not expected on this stack"
        return Judgement(Verdict.REPRODUCED, False, note)
    if outcome.kind in ("crashed", "hung"):
        return Judgement(Verdict(outcome.kind), True, outcome.message)
    where = "in set-up: " if outcome.phase == "setup" else "no documented signature: "
    return Judgement(Verdict.CHANGED, True, where + _first_line(outcome))


def _first_line(outcome: Outcome) -> str:
    name = outcome.exceptions[0].rpartition(".")[2] if outcome.exceptions else "failed"
    line = next((line.strip() for line in outcome.message.splitlines() if line.strip()), "")
    return f"{name}: {line}" if line else name
