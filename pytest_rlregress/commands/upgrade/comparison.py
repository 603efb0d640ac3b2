"""Compare what the tests said before an upgrade and after it. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pytest_rlregress.failures.causes import BadTest, find_cause, find_shared
from pytest_rlregress.failures.observations import Observation, describe
from pytest_rlregress.failures.verdicts import Rank, Verdict, rank
from pytest_rlregress.trials.pytest_run import TrialRun
from pytest_rlregress.trials.trial import Trial
from pytest_rlregress.util.text import on_one_line

_NOT_SEEN = "not seen"


class Effect(StrEnum):
    """What an upgrade does to a test, the gravest first."""

    BROKEN = "broken"  # a component that the test needs does not work there
    WORSE = "worse"
    UNTRIED = "untried"  # worse, and the failure was not tried with the releases there
    EXPECTED = "expected"  # worse, as the file of expectations says
    BAD_BEFORE = "bad before"
    LOST = "lost"  # it says nothing about the stack any more
    BETTER = "better"
    ABSENT = "absent"  # the documented failure is gone
    GAINED = "gained"
    SAME = "same"

    @property
    def forbids(self) -> bool:
        """Whether it makes an upgrade unsafe."""
        return self in (Effect.BROKEN, Effect.WORSE)


@dataclass(frozen=True)
class VerdictChange:
    """One side of a documented failure, one of its tests, or a test of the user's own, before and after an upgrade.

    Attributes:
        name: Id of the failure, or the test's key; the cause that tests of several failures or sides share.
        side: ``reproduces``, ``guards`` or "".
        before: Its verdicts before, counted: ``held 5``.
        after: Its verdicts after.
        effect: The gravest on any of its tests.
        verdict: The verdict after of the first test with that effect; ``not seen`` where there was no such test.
        reason: What came out of it, in one line.
        text: Its report's text, where it failed.
        cause: What failed at its root, where it got worse; "" where no package says.
    """

    name: str
    side: str
    before: str
    after: str
    effect: Effect
    verdict: str
    reason: str = ""
    text: str = ""
    cause: str = ""


def compare_trials(before: Trial, after: Trial) -> tuple[VerdictChange, ...]:
    """Compare every test that was seen in either trial; of several runs the worst counts."""
    seen: dict[str, Observation] = {}
    for run in (*before.runs, *after.runs):
        for test, one in run.observations.items():
            seen.setdefault(test, one)
    tests = [test for test in seen if "::" in test] or list(seen)
    return tuple(_compare(seen[test], _find_worst(before.runs, test), _find_worst(after.runs, test)) for test in tests)


def is_driven(effects: Iterable[VerdictChange], *, after: bool) -> bool:
    """Return whether any test said something about the stack, before or after."""
    return any(rank(one.after if after else one.before) is not Rank.NOTHING for one in effects)


def is_doubtful(effects: Iterable[VerdictChange]) -> bool:
    """Return whether a test came out worse with releases that its failure was not tried with."""
    return any(one.effect is Effect.UNTRIED for one in effects)


def summarize_effects(effects: Sequence[VerdictChange]) -> tuple[VerdictChange, ...]:
    """Summarize what changed by documented failure and side, or by the cause that these share; the gravest first."""
    shared = {one.cause for one in find_shared(BadTest(one, one.name, one.side, one.cause) for one in effects)}
    groups: dict[tuple[str, str], list[VerdictChange]] = {}
    for one in effects:
        groups.setdefault((one.cause, "") if one.cause in shared else (one.name, one.side), []).append(one)
    gravest_first, rows = list(Effect), []
    for (name, side), tests in groups.items():
        gravest = min(tests, key=lambda one: gravest_first.index(one.effect))
        if gravest.effect is not Effect.SAME:
            before, after = (_count(getattr(one, end) for one in tests) for end in ("before", "after"))
            rows.append(replace(gravest, name=name, side=side, before=before, after=after))
    return tuple(sorted(rows, key=lambda row: (gravest_first.index(row.effect), row.name, row.side)))


def list_gone(effects: Iterable[VerdictChange]) -> tuple[str, ...]:
    """List the failures that were reproduced before and in no test after: their workarounds can be removed."""
    sides: dict[str, list[VerdictChange]] = {}
    for one in effects:
        if one.side == "reproduces":
            sides.setdefault(one.name, []).append(one)
    return tuple(
        failure
        for failure, tests in sorted(sides.items())
        if any(one.effect is Effect.ABSENT for one in tests)
        and not any(rank(one.after) > Rank.GOOD or one.effect is Effect.LOST for one in tests)
    )


def _compare(known: Observation, before: Observation | None, after: Observation | None) -> VerdictChange:
    was, is_ = (one.verdict if one is not None else _NOT_SEEN for one in (before, after))
    effect = _classify(was, is_)
    if effect is Effect.WORSE and after is not None and (after.expected or after.untried):
        effect = Effect.EXPECTED if after.expected else Effect.UNTRIED
    found = VerdictChange(known.failure or known.test, known.side or "", was, is_, effect, is_)
    if after is None or effect is Effect.SAME:
        return found
    reason = on_one_line(after.outcome.message) if rank(is_) is Rank.NOTHING else describe(after)
    if effect is Effect.UNTRIED:
        reason = f"{after.untried}: {reason}"
    elif effect is Effect.EXPECTED:
        reason = f"{after.expected}: {reason}"
    shown = effect.forbids or effect is Effect.UNTRIED
    if not shown:
        return replace(found, reason=reason)
    return replace(found, reason=reason, text=after.text, cause=find_cause(after.outcome))


def _classify(before: str, after: str) -> Effect:
    was, is_ = rank(before), rank(after)
    if was is Rank.FAILING or before == Verdict.BLOCKED:
        return Effect.BETTER if Rank.NOTHING < is_ < Rank.FAILING else Effect.BAD_BEFORE
    if after == Verdict.BLOCKED:
        return Effect.BROKEN
    if is_ is Rank.NOTHING:
        return Effect.SAME if was is Rank.NOTHING else Effect.LOST
    if was is Rank.NOTHING:
        return Effect.WORSE if is_ is Rank.FAILING else Effect.GAINED
    if is_ > was:
        return Effect.WORSE
    if after == Verdict.ABSENT and before == Verdict.REPRODUCED:
        return Effect.ABSENT
    return Effect.SAME


def _find_worst(runs: Sequence[TrialRun], test: str) -> Observation | None:
    """Find a test in the run in which it was worst; what kept it from being run stands for it."""
    found = [one for run in runs if (one := run.find(test)) is not None]
    return max(found, key=lambda one: (one.verdict == Verdict.BLOCKED, rank(one.verdict)), default=None)


def _count(words: Iterable[str]) -> str:
    counts: Mapping[str, int] = Counter(words)
    return ", ".join(f"{word} {count}" for word, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))
