"""Render what a bisect found as text for a terminal, as Markdown for an issue, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pytest_rlregress.bisect.answer import Answer, ChangedSet, Culprit, Endpoint, NotFound
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
    one_line,
    to_json,
    to_markdown,
    to_text,
    whole,
)
from pytest_rlregress.trials.text import quote_command
from pytest_rlregress.util.text import plural

#: The form of the JSON: raised when a key changes its meaning or goes.
FORMAT = 2


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer as JSON can hold it: the fields of these classes by their names, and format, exit_code, summary."""
    return to_json(_document(answer), answer, format_=FORMAT, exit_code=answer.exit_code)


def as_text(answer: Answer) -> str:
    """The answer to be read in a terminal; no end of line at its end."""
    return to_text(_document(answer))


def as_markdown(answer: Answer) -> str:
    """The answer ready to be pasted into an issue on GitHub."""
    return to_markdown(_document(answer))


def _document(answer: Answer) -> Document:
    return Document(answer.request.test, partial(_headline, answer), partial(_sections, answer))


def _headline(answer: Answer, style: Style) -> list[str]:
    """What was found, a sentence for each culprit; or why nothing was."""
    if answer.not_found:
        why = answer.not_found
        if any(end.conflict and end.label == why.first for end in answer.ends):
            why = replace(why, reason="its environment cannot be built, for what is said below")
        return [_explain_not_found(why, style)]
    return [*_describe_set(answer.changed, style), *(_describe_flip(culprit, style) for culprit in answer.culprits)]


_WHY_NOT = {
    "fails at both": "The failure shows at both ends, {first} and {second}: no upgrade between them brought it.",
    "passes at both": "The failure shows at neither end, {first} nor {second}: name a bad end at which it does.",
    "swapped": "The ends are swapped: the failure shows at {first}, given as good, and not at {second}, given as bad. "
    "Exchange them{command}.",
    "flaky end": "An end has to give the same every time, and {first} does not: {reason}.",
    "untested end": "An end has to be tested before anything between can be, and {first} could not be: {reason}.",
    "not monotone": "It flips more than once: {first} is bad and {second}, nearer to the bad end, is good again"
    "{because}. Ask with ends between which it flips once.",
}


def _explain_not_found(found: NotFound, style: Style) -> str:
    return _WHY_NOT[found.kind].format(
        first=style.code(found.first),
        second=style.code(found.second),
        reason=style.prose(found.reason.removeprefix("flaky: ").rstrip(". \n")),
        because=f" ({style.prose(found.reason)})" if found.reason else "",
        command=f": {style.code(quote_command(found.command))}" if found.command else "",
    )


def _describe_set(changed: ChangedSet | None, style: Style) -> Iterator[str]:
    if changed is None:
        return
    enough = "1 is enough" if len(changed.minimal) == 1 else f"{len(changed.minimal)} together are enough"
    along = f"{len(changed.moved_along)} that must move along, and " if changed.moved_along else ""
    seen = f"seen failing with {along}the rest as at the good end"
    more = "" if changed.proven else "; it was not seen good without each of them"
    names = join_names(changed.minimal, style)
    yield f"Of {plural(changed.changed, 'changed package')} {enough}: {names} ({seen}{more})."
    for group in changed.undecided:
        yield f"Not told apart, as what lies between them could not be tested: {join_names(group, style)}."


def _describe_flip(culprit: Culprit, style: Style) -> str:
    older, newer, word, last = culprit.last_good, culprit.first_bad, "Broke", "good"
    if culprit.repaired:
        older, newer, word, last = newer, older, "Repaired", "bad"
    old, new = (f"{style.code(one.label)}{f' ({style.prose(one.date)})' if one.date else ''}" for one in (older, newer))
    where = f"{word} in {style.code(culprit.name)}"
    if culprit.between:
        untested = plural(len(culprit.between), "candidate")
        return f"{where} after {old}, in {new} at the latest; {untested} between could not be tested."
    return f"{where} {new}; last {last}: {old}."


def _sections(answer: Answer, style: Style) -> Iterator[Section]:
    """All but the headline, in the order of how likely it is wanted."""
    code, prose, points = style.code, style.prose, _list_endpoints(answer)
    yield Section("Where it flips" if answer.culprits else "The ends", _tabulate(points, style))
    if answer.not_found:
        yield from _describe_ends(points)
        if answer.not_found.advice:
            yield Section("What may help", [prose(one) for one in answer.not_found.advice])
    for culprit in answer.culprits:
        yield from _describe_culprit(culprit, style)
    for title, tests in (
        ("Flips at the same place", answer.also_flip),
        ("Flips between the ends, elsewhere", answer.flip_elsewhere),
    ):
        if tests:
            yield Section(title, [code(test) for test in tests], folded=len(tests) > MANY)
    if changed := answer.changed:
        lines = [code(one) for one in changed.minimal]
        lines += [f"needed by these: {code(one)}" for one in changed.moved_along]
        lines += [f"can only be moved together: {join_names(group, style)}" for group in changed.groups]
        yield Section(f"What it takes, of {plural(changed.changed, 'changed package')}", lines)
    yield Section("To reproduce", Verbatim(quote_command(answer.command), "sh"))
    if documented := answer.request.documented:
        facts = {"What": documented.title, "Cause": documented.cause, "Remedy": documented.remedy}
        yield Section(f"Documented as {documented.id}", [f"{key}: {prose(text)}" for key, text in facts.items()])
    around = answer.run_context
    where = {"Python": around.python, "platform": around.platform, "hardware": around.hardware, **around.held}
    yield Section(
        "Where, and what was held fixed", Table(("", ""), [(prose(name), code(one)) for name, one in where.items()])
    )
    if around.left_out:
        yield Section("Left out of the environments", [code(one) for one in around.left_out], folded=True)
    if not answer.not_found:
        yield from _describe_ends(points)
    yield list_trials(answer.tried, answer.seconds, style)


def _tabulate(points: Sequence[tuple[str, str, Endpoint]], style: Style) -> Table:
    """Tabulate the places; without the column of the dates where none is known."""
    dated = any(one.date for _, _, one in points)
    rows = [
        (role, style.code(at), *[style.prose(one.date or "")] * dated, style.prose(one.verdict), style.code(one.title))
        for role, at, one in points
    ]
    return Table(("", "at", *["date"] * dated, "verdict", ""), rows)


def _describe_ends(points: Sequence[tuple[str, str, Endpoint]]) -> Iterator[Section]:
    """What came out at each place; what came out at several, at the first of them."""
    shown: dict[str, str] = {}
    for role, at, one in points:
        if one.conflict:
            yield Section(f"Why {at}, the {role}, could not be tried", Verbatim(whole(one.conflict)))
        if one.text:
            text = f"the same as at {one_line(shown[one.text])}" if one.text in shown else excerpt(one.text)
            yield Section(f"What came out at {at}, the {role}", Verbatim(text), folded=True)
            shown.setdefault(one.text, at)


def _list_endpoints(answer: Answer) -> list[tuple[str, str, Endpoint]]:
    """The places worth a line of their own: what each is, its name, and what was seen there."""
    found = [
        (role, f"{culprit.name} {one.label}", one)
        for culprit in answer.culprits
        for role, one in (("last good", culprit.last_good), ("first bad", culprit.first_bad))
    ]
    named = {at for _, at, _ in found}
    good, bad = (
        [(role, one.label, one)] * (one.label not in named)
        for role, one in zip(("good end", "bad end"), answer.ends, strict=True)
    )
    return [*good, *found, *bad]


def _describe_culprit(culprit: Culprit, style: Style) -> Iterator[Section]:
    """What else there is to know about where it flips."""
    for title, skipped in (("between the two, not tested", culprit.between), ("not tested", culprit.skipped)):
        lines = [f"{style.code(one.label)}: {style.prose(one.reason)}" for one in skipped]
        if lines:
            yield Section(f"{culprit.name}: {title}", lines, folded=len(lines) > MANY)
    with_it, from_base = "moved from last good to first bad", "differs at first bad from what is held fixed"
    for title, moved in ((with_it, culprit.moved), (from_base, culprit.from_base)):
        if moved:
            yield Section(f"{culprit.name}: {title}", Verbatim("\n".join(map(one_line, moved))), len(moved) > MANY)
    for title, text in culprit.details:
        if text:
            yield Section(f"{culprit.name}: {title}", Verbatim(excerpt(text)), folded=True)
