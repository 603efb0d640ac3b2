"""Render what a preview found as text for a terminal, as Markdown for an issue, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pytest_rlregress.trials.document import (
    MANY,
    Document,
    Section,
    Style,
    Table,
    Verbatim,
    excerpt,
    join_names,
    list_trials,
    to_json,
    to_markdown,
    to_text,
)
from pytest_rlregress.trials.text import quote_command
from pytest_rlregress.upgrade.answer import UpgradeAnswer
from pytest_rlregress.upgrade.comparison import Effect, VerdictChange
from pytest_rlregress.util.text import plural

#: The form of the JSON: raised when a key changes its meaning or goes.
FORMAT = 2
_SHOWN = 3  # of what gets worse, in the sentence that answers
_MEANS = {
    Effect.BROKEN: "not safe: what it needs does not work",
    Effect.WORSE: "not safe: worse",
    Effect.BAD_BEFORE: "bad here already",
    Effect.LOST: "can no longer be driven",
    Effect.BETTER: "repaired",
    Effect.ABSENT: "absent in some tests",
    Effect.GAINED: "can be driven now",
}


def as_json(answer: UpgradeAnswer) -> dict[str, Any]:
    """The answer as JSON can hold it: the fields of these classes by their names, and format, exit_code, summary."""
    return to_json(_document(answer), answer, format_=FORMAT, exit_code=answer.exit_code)


def as_text(answer: UpgradeAnswer) -> str:
    """The answer to be read in a terminal; no end of line at its end."""
    return to_text(_document(answer))


def as_markdown(answer: UpgradeAnswer) -> str:
    """The answer ready to be pasted into an issue on GitHub."""
    return to_markdown(_document(answer))


def _document(answer: UpgradeAnswer) -> Document:
    return Document(f"upgrade {answer.asked}", partial(_headline, answer), partial(_sections, answer))


# -- the answer in sentences ------------------------------------------------------------------------------------------


def _headline(answer: UpgradeAnswer, style: Style) -> Iterator[str]:
    """Say what stays, what is bad already, then whether it is safe, then what can no longer be told."""
    yield from (f"{style.prose(one)}." for one in answer.stays)
    if answer.run_context is None:
        asks = f"what {style.code(answer.asked)} asks for is what is installed"
        yield "Nothing would change." if answer.stays else f"Nothing would change: {asks}."
        return
    before = _names(answer.changes, Effect.BAD_BEFORE)
    if before:
        yield f"Bad here already, and not counted: {join_names(before, style)}."
    worse = answer.trouble or any(one.effect.forbids for one in answer.changes)
    yield _describe_unsafe(answer, style) if worse else _describe_safe(answer, style)
    if answer.back and not (worse and answer.safe_set):
        moves = f": {join_names(answer.instead, style)}" if answer.instead else " nothing moves: stay as it is here"
        yield f"With --stepwise, {_describe_set(answer, style)}." if answer.safe_set else f"Without a step back{moves}."
    lost = _names(answer.changes, Effect.LOST)
    if lost:
        yield f"Coverage is lost, as tests can no longer be driven: {join_names(lost, style)}."
    if answer.output:
        yield f"The lock is in {style.code(answer.output)}."


def _names(changes: Sequence[VerdictChange], effect: Effect) -> list[str]:
    return list(dict.fromkeys(one.name for one in changes if one.effect is effect))


def _describe_safe(answer: UpgradeAnswer, style: Style) -> str:
    count = len(answer.gone)
    words = f"and {plural(count, 'workaround')} may go: {join_names(answer.gone, style)}"
    count_moved = len(answer.asked_for) + len(answer.moved_along)
    moved = f"{plural(count_moved, 'package')} {'moves' if count_moved == 1 else 'move'}"
    same = f"{moved}, {plural(answer.unchanged, 'test')} unchanged"
    if answer.back:
        return f"{', '.join(answer.back)}; beside that nothing gets worse{f', {words}' if count else ''} ({same})."
    return f"Safe, {words} ({same})." if count else f"Safe ({same})."


def _describe_unsafe(answer: UpgradeAnswer, style: Style) -> str:
    worse = list(dict.fromkeys(_describe_worse(one, style) for one in answer.changes if one.effect.forbids))
    more = f" and {len(worse) - _SHOWN} more" * (len(worse) > _SHOWN)
    why = ", ".join(worse[:_SHOWN]) + more
    if answer.trouble:
        why = f"the tests could not be run with all of it, {style.code(answer.trouble)}"
    back = "".join(f"{one}. " for one in answer.back)
    return f"{back}Not safe: {why}; {_describe_set(answer, style)}."


def _describe_worse(change: VerdictChange, style: Style) -> str:
    if change.effect is Effect.BROKEN:
        return style.code(change.reason or f"{change.name} {change.verdict}")
    return f"{style.code(change.name)} {change.verdict}"


def _describe_set(answer: UpgradeAnswer, style: Style) -> str:
    found = answer.safe_set
    if found is None:
        return f"{style.code('--stepwise')} finds the largest safe set"
    if not found.kept:
        return "no part of it is safe"
    count = plural(len(answer.asked_for) + len(answer.moved_along), "upgrade")
    left = [line for one in found.left_out for line in one.upgrade]
    return f"the largest safe set is {len(found.kept)} of {count}, without {join_names(left, style)}"


# -- all else ---------------------------------------------------------------------------------------------------------


def _sections(answer: UpgradeAnswer, style: Style) -> Iterator[Section]:
    code, prose = style.code, style.prose
    if answer.run_context is None:
        return
    if answer.changes:
        rows = [
            (code(one.name), one.side, prose(one.before), prose(one.after), _explain(one, answer), code(_reason(one)))
            for one in answer.changes
        ]
        yield Section("What the tests say", Table(("test", "side", "here", "with it", "means", ""), rows))
    if found := answer.safe_set:
        if found.kept:
            yield Section("The largest safe set", [code(one) for one in found.kept], folded=len(found.kept) > MANY)
        lines = [f"{', '.join(map(code, one.upgrade))}: {code(one.reason)}" for one in found.left_out]
        yield Section("Left out of it, and what keeps it out", lines)
    if answer.step:
        numbers = [(prose(one.name), f"{one.before:.4g}", f"{one.after:.4g}") for one in answer.step]
        yield Section("The training step", Table(("", "here", "with it"), numbers))
    moves = [(line, "asked for") for line in answer.asked_for] + [(line, "moves along") for line in answer.moved_along]
    table = Table(("upgrade", ""), [(code(line), why) for line, why in moves])
    yield Section("What moves", table, folded=len(moves) > MANY)
    yield Section("To ask again", Verbatim(quote_command(answer.command), "sh"))
    for one in answer.changes:
        if one.text:
            yield Section(f"What came out with it: {one.name}", Verbatim(excerpt(one.text)), folded=True)
    around = answer.run_context
    where = {"Python": around.python, "platform": around.platform, "hardware": around.hardware}
    yield Section("Where", Table(("", ""), [(prose(name), code(one)) for name, one in where.items()]))
    yield list_trials(answer.tried, answer.seconds, style)


def _reason(change: VerdictChange) -> str:
    return "" if change.reason == change.verdict else change.reason


def _explain(change: VerdictChange, answer: UpgradeAnswer) -> str:
    if change.effect is Effect.ABSENT and change.name in answer.gone:
        return "workaround may go"
    return _MEANS[change.effect]
