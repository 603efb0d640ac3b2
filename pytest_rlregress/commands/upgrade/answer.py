"""What a preview of an upgrade found: what moves, what the tests say with it; told in sentences and sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_rlregress.commands.upgrade.comparison import Effect, VerdictChange
from pytest_rlregress.trials.document import (
    MANY,
    Document,
    Section,
    excerpt,
    join_names,
    list_lines,
    one_line,
    quote_command,
    tabulate,
    unbroken,
)
from pytest_rlregress.trials.trial import RunContext, TrialSummary, list_trials, list_where
from pytest_rlregress.util.text import plural


@dataclass(frozen=True)
class LeftOut:
    """An upgrade that is not part of the largest safe set.

    Attributes:
        upgrade: ``name before -> after``; several where they can only be moved together.
        reason: The verdicts that keep it out, or the upgrade that it needs and that is left out.
    """

    upgrade: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class SafeSet:
    """The largest set of upgrades that was seen to make nothing worse.

    Attributes:
        kept: Its upgrades, with what moves along.
        left_out: The others of those that were asked for.
    """

    kept: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class UpgradeAnswer:
    """What a preview found.

    Attributes:
        asked: What was asked for, in words.
        command: What asks the same again.
        asked_for: The upgrades that were asked for, as ``name before -> after``.
        moved_along: What has to move with them.
        safe: Whether all of it makes nothing worse, not even where the failure was not tried with these releases, and
            takes no trainer and no engine back.
        back: The trainers and engines that it takes back, each with how far.
        instead: Then: the newest of what was asked for that takes none back; () is to stay.
        stays: The packages whose newest release cannot be installed here, each with who forbids it.
        moved: What the releases change for runs of the installed trainers, whatever the tests say, in lines.
        trouble: Why the tests could not be run with all of it, where a smaller set was looked for; else "".
        changes: The tests that say something else with it, by documented failure and side.
        gone: Documented failures that are reproduced here and not with it: their workarounds can be removed.
        unchanged: How many tests say the same of the stack.
        safe_set: With --stepwise, where all of it is not safe.
        run_context: Where it was tried; None where nothing would change.
        tried: Every trial.
        seconds: Wall-clock seconds, those of an interrupted preview included.
        output: The file that the lock was written to, of all upgrades or the largest safe set; "" for none.
    """

    asked: str
    command: tuple[str, ...]
    asked_for: tuple[str, ...] = ()
    moved_along: tuple[str, ...] = ()
    safe: bool = True
    back: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    trouble: str = ""
    changes: tuple[VerdictChange, ...] = ()
    gone: tuple[str, ...] = ()
    unchanged: int = 0
    safe_set: SafeSet | None = None
    run_context: RunContext | None = None
    tried: tuple[TrialSummary, ...] = ()
    seconds: float = 0.0
    output: str = ""


_FORMAT = 3
_SHOWN = 3  # of what gets worse, in the sentence that answers
_MEANS = {
    Effect.BROKEN: "not safe: what it needs does not work",
    Effect.WORSE: "not safe: worse",
    Effect.UNTRIED: "worse, or the test doesn't fit",
    Effect.EXPECTED: "worse, as expected",
    Effect.BAD_BEFORE: "bad here already",
    Effect.LOST: "can no longer be driven",
    Effect.BETTER: "repaired",
    Effect.ABSENT: "absent in some tests",
    Effect.GAINED: "can be driven now",
}


def tell(answer: UpgradeAnswer) -> Document:
    """Tell what a preview found."""
    sentences, sections = [*_list_sentences(answer)], [*_list_sections(answer)]
    return Document(f"upgrade {answer.asked}", sentences, sections, answer, _FORMAT, 0 if answer.safe else 1)


# -- the answer in sentences ------------------------------------------------------------------------------------------


def _list_sentences(answer: UpgradeAnswer) -> Iterator[str]:
    """Say what stays, what is bad already, then whether it is safe, then what can no longer be told."""
    yield from (f"{unbroken(one)}." for one in answer.stays)
    if answer.run_context is None:
        asks = f"what {one_line(answer.asked)} asks for is what is installed"
        yield "Nothing would change." if answer.stays else f"Nothing would change: {asks}."
        return
    before = _names(answer.changes, Effect.BAD_BEFORE)
    if before:
        yield f"Bad here already, and not counted: {join_names(before)}."
    worse = answer.trouble or any(one.effect.forbids for one in answer.changes)
    untried = [one for one in answer.changes if one.effect is Effect.UNTRIED]
    if worse or not untried:
        yield _describe_unsafe(answer) if worse else _describe_safe(answer)
    if untried:
        back = () if worse else answer.back
        yield "".join(f"{one}. " for one in back) + _describe_untried(untried, worse=bool(worse))
    if answer.back and not (worse and answer.safe_set):
        moves = f": {join_names(answer.instead)}" if answer.instead else " nothing moves: stay as it is here"
        yield f"With --stepwise, {_describe_set(answer)}." if answer.safe_set else f"Without a step back{moves}."
    expected = _names(answer.changes, Effect.EXPECTED)
    if expected:
        yield f"Worse, as the file of expectations says, and not counted: {join_names(expected)}."
    lost = _names(answer.changes, Effect.LOST)
    if lost:
        yield f"Coverage is lost, as tests can no longer be driven: {join_names(lost)}."
    if answer.output:
        yield f"The lock is in {one_line(answer.output)}."


def _names(changes: Sequence[VerdictChange], effect: Effect) -> list[str]:
    return list(dict.fromkeys(one.name for one in changes if one.effect is effect))


def _describe_safe(answer: UpgradeAnswer) -> str:
    count = len(answer.gone)
    words = f"and {plural(count, 'workaround')} can be removed: {join_names(answer.gone)}"
    count_moved = len(answer.asked_for) + len(answer.moved_along)
    moved = f"{plural(count_moved, 'package')} {'moves' if count_moved == 1 else 'move'}"
    same = f"{moved}, {plural(answer.unchanged, 'test')} unchanged"
    if answer.back:
        return f"{', '.join(answer.back)}; beside that nothing gets worse{f', {words}' if count else ''} ({same})."
    return f"Safe, {words} ({same})." if count else f"Safe ({same})."


def _describe_unsafe(answer: UpgradeAnswer) -> str:
    worse = list(
        dict.fromkeys(
            one_line(one.reason if one.effect is Effect.BROKEN and one.reason else f"{one.name} {one.verdict}")
            for one in answer.changes
            if one.effect.forbids
        )
    )
    more = f" and {len(worse) - _SHOWN} more" if len(worse) > _SHOWN else ""
    why = ", ".join(worse[:_SHOWN]) + more
    if answer.trouble:
        why = f"the tests could not be run with all of it, {one_line(answer.trouble)}"
    back = "".join(f"{one}. " for one in answer.back)
    return f"{back}Not safe: {why}; {_describe_set(answer)}."


def _describe_untried(untried: Sequence[VerdictChange], *, worse: bool) -> str:
    """Say which tests came out badly with releases that their failures were not tried with."""
    first = "Nor is this told" if worse else "Not told whether it is safe"
    tests = dict.fromkeys(one_line(f"{one.name} {one.verdict}, {one.reason}") for one in untried)
    more = f"; and {len(tests) - _SHOWN} more" if len(tests) > _SHOWN else ""
    return f"{first}, for the test may not fit the release: {'; '.join([*tests][:_SHOWN])}{more}."


def _describe_set(answer: UpgradeAnswer) -> str:
    found = answer.safe_set
    if found is None:
        return "--stepwise finds the largest safe set"
    if not found.kept:
        return "no part of it is safe"
    count = plural(len(answer.asked_for) + len(answer.moved_along), "upgrade")
    left = [line for one in found.left_out for line in one.upgrade]
    return f"the largest safe set is {len(found.kept)} of {count}, without {join_names(left)}"


# -- all else ---------------------------------------------------------------------------------------------------------


def _list_sections(answer: UpgradeAnswer) -> Iterator[Section]:
    if answer.run_context is None:
        return
    if answer.moved:
        yield Section("What moved for your runs, whatever the tests say", list_lines(map(one_line, answer.moved)))
    if answer.changes:
        rows = [_list_cells(one, answer) for one in answer.changes]
        yield Section("What the tests say", tabulate(rows, ("test", "side", "here", "with it", "means", "")))
    if found := answer.safe_set:
        if found.kept:
            kept = list_lines(map(one_line, found.kept))
            yield Section("The largest safe set", kept, folded=len(found.kept) > MANY)
        lines = [f"{', '.join(map(one_line, one.upgrade))}: {one_line(one.reason)}" for one in found.left_out]
        yield Section("Left out of it, and what keeps it out", list_lines(lines))
    moves = [(line, "asked for") for line in answer.asked_for] + [(line, "moves along") for line in answer.moved_along]
    yield Section("What moves", tabulate(moves, ("upgrade", "")), folded=len(moves) > MANY)
    yield Section("To ask again", quote_command(answer.command), language="sh")
    for one in answer.changes:
        if one.text:
            yield Section(f"What came out with it: {one.name}", excerpt(one.text), folded=True)
    yield list_where("Where", answer.run_context)
    yield list_trials(answer.tried, answer.seconds)


def _list_cells(change: VerdictChange, answer: UpgradeAnswer) -> tuple[str, ...]:
    gone = change.effect is Effect.ABSENT and change.name in answer.gone
    means = "workaround can be removed" if gone else _MEANS[change.effect]
    reason = "" if change.reason == change.verdict else change.reason
    return change.name, change.side, change.before, change.after, means, reason
