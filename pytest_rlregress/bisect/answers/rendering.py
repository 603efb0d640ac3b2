"""Render an answer as text for a terminal, as Markdown for an issue, and as JSON.

Nothing of it is shown before ``redact``: no credentials of an index, no home folder, no control characters.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from pytest_rlregress.bisect.answers.answer import Answer, ChangedSet, Culprit, Endpoint, NotFound
from pytest_rlregress.bisect.answers.text import format_duration, quote_command, redact
from pytest_rlregress.util.text import code_block, code_span, plural, without_markup

#: The form of the JSON: raised when a key changes its meaning or goes.
FORMAT = 2


# -- JSON -------------------------------------------------------------------------------------------------------------


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer as JSON can hold it: the fields of these classes by their names, and format, exit_code, summary."""
    return {
        "format": FORMAT,
        "exit_code": answer.exit_code,
        "summary": " ".join(_headline(answer, _TEXT)),
        **_to_json(answer),
    }


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _to_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {redact(key): _to_json(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return redact(value) if isinstance(value, str) else value


# -- text and Markdown: the same sections, laid out in two ways -------------------------------------------------------

_LINES, _LONG = 25, 200  # of a text, and characters of a line: an issue may have 65536 in all
_MANY = 12  # lines that need not be folded
_WIDTH = 100


class _Style(NamedTuple):
    """How a piece of a line is written: what is quoted (a version, a reason), and what was written to be read."""

    code: Callable[[str], str]
    prose: Callable[[str], str]


class _Table(NamedTuple):
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class _Verbatim(NamedTuple):
    text: str
    language: str = ""


class _Section(NamedTuple):
    title: str  # not in a style yet
    body: list[str] | _Table | _Verbatim
    folded: bool = False


def as_text(answer: Answer) -> str:
    """The answer to be read in a terminal; no end of line at its end."""
    parts = ["\n".join(map(_fill, _headline(answer, _TEXT)))]
    for title, body, _ in _sections(answer, _TEXT):
        parts.append(f"{_one_line(title)}\n{textwrap.indent(_laid_out(body), '  ')}")
    return "\n\n".join(parts)


def as_markdown(answer: Answer) -> str:
    """The answer ready to be pasted into an issue on GitHub."""
    parts = [f"## {_code(answer.request.test)}", *(f"**{line}**" for line in _headline(answer, _MARKDOWN))]
    for title, body, folded in _sections(answer, _MARKDOWN):
        text = _marked_up(body)
        summary = _unlinked(html.escape(_one_line(title)))
        unfolded = f"### {_prose(title)}\n\n{text}"
        parts.append(f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>" if folded else unfolded)
    return "\n\n".join(parts) + "\n"


def _headline(answer: Answer, style: _Style) -> list[str]:
    """What was found, a sentence for each culprit; or why nothing was."""
    if answer.not_found:
        return [_explain_not_found(answer.not_found, style)]
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


def _explain_not_found(found: NotFound, style: _Style) -> str:
    return _WHY_NOT[found.kind].format(
        first=style.code(found.first),
        second=style.code(found.second),
        reason=style.code(found.reason.removeprefix("flaky: ").rstrip(". \n")),
        because=f" ({style.code(found.reason)})" if found.reason else "",
        command=f": {style.code(quote_command(found.command))}" if found.command else "",
    )


def _describe_set(changed: ChangedSet | None, style: _Style) -> Iterator[str]:
    if changed is None:
        return
    enough = "1 is enough" if len(changed.minimal) == 1 else f"{len(changed.minimal)} together are enough"
    along = f"{len(changed.moved_along)} that must move along, and " if changed.moved_along else ""
    seen = f"seen failing with {along}the rest as at the good end"
    more = "" if changed.proven else "; it was not seen good without each of them"
    names = _join_some(changed.minimal, style)
    yield f"Of {plural(changed.changed, 'changed package')} {enough}: {names} ({seen}{more})."
    for group in changed.undecided:
        yield f"Not told apart, as what lies between them could not be tested: {_join_some(group, style)}."


def _join_some(names: Sequence[str], style: _Style) -> str:
    more = f" and {len(names) - _MANY} more" * (len(names) > _MANY)
    return ", ".join(map(style.code, names[:_MANY])) + more


def _describe_flip(culprit: Culprit, style: _Style) -> str:
    older, newer, word, last = culprit.last_good, culprit.first_bad, "Broke", "good"
    if culprit.repaired:
        older, newer, word, last = newer, older, "Repaired", "bad"
    old, new = (f"{style.code(one.label)} ({_date(one, style)})" for one in (older, newer))
    where = f"{word} in {style.code(culprit.name)}"
    if culprit.between:
        untested = plural(len(culprit.between), "candidate")
        return f"{where} after {old}, in {new} at the latest; {untested} between could not be tested."
    return f"{where} {new}; last {last}: {old}."


def _sections(answer: Answer, style: _Style) -> Iterator[_Section]:
    """All but the headline, in the order of how likely it is wanted."""
    code, prose, points = style.code, style.prose, _list_endpoints(answer)
    rows = [(role, code(at), _date(one, style), prose(one.verdict), code(one.title)) for role, at, one in points]
    yield _Section("Where it flips" if answer.culprits else "The ends", _Table(("", "at", "date", "verdict", ""), rows))
    for culprit in answer.culprits:
        yield from _describe_culprit(culprit, style)
    for title, tests in (
        ("Flips at the same place", answer.also_flip),
        ("Flips between the ends, elsewhere", answer.flip_elsewhere),
    ):
        if tests:
            yield _Section(title, [code(test) for test in tests], folded=len(tests) > _MANY)
    if changed := answer.changed:
        lines = [code(one) for one in changed.minimal]
        lines += [f"needed by these: {code(one)}" for one in changed.moved_along]
        lines += [f"can only be moved together: {_join_some(group, style)}" for group in changed.groups]
        yield _Section(f"What it takes, of {plural(changed.changed, 'changed package')}", lines)
    yield _Section("To reproduce", _Verbatim(quote_command(answer.command), "sh"))
    if documented := answer.request.documented:
        facts = {"What": documented.title, "Cause": documented.cause, "Remedy": documented.remedy}
        yield _Section(f"Documented as {documented.id}", [f"{key}: {prose(text)}" for key, text in facts.items()])
    around = answer.run_context
    where = {"Python": around.python, "platform": around.platform, "hardware": around.hardware, **around.held}
    yield _Section(
        "Where, and what was held fixed", _Table(("", ""), [(prose(name), code(one)) for name, one in where.items()])
    )
    if around.left_out:
        yield _Section("Left out of the environments", [code(one) for one in around.left_out], folded=True)
    for role, at, one in points:
        if one.text and not (answer.culprits and role.endswith(" end")):
            yield _Section(f"What came out at {at}, the {role}", _Verbatim(_excerpt(one.text)), folded=True)
    trials = [
        (str(number), code(one.label), one.state.value, prose(one.verdict), f"{one.seconds:.1f}", code(one.reason))
        for number, one in enumerate(answer.tried, 1)
    ]
    runs = plural(sum(one.runs for one in answer.tried), "run")
    title = f"{plural(len(trials), 'trial')}, {runs}, {format_duration(answer.seconds)} in all"
    yield _Section(title, _Table(("", "candidate", "is", "verdict", "seconds", "why"), trials), folded=True)


def _date(seen: Endpoint, style: _Style) -> str:
    return style.prose(seen.date or "date unknown")


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


def _describe_culprit(culprit: Culprit, style: _Style) -> Iterator[_Section]:
    """What else there is to know about where it flips."""
    for title, skipped in (("between the two, not tested", culprit.between), ("not tested", culprit.skipped)):
        lines = [f"{style.code(one.label)}: {style.code(one.reason)}" for one in skipped]
        if lines:
            yield _Section(f"{culprit.name}: {title}", lines, folded=len(lines) > _MANY)
    with_it, from_base = "moved from last good to first bad", "differs at first bad from what is held fixed"
    for title, moved in ((with_it, culprit.moved), (from_base, culprit.from_base)):
        if moved:
            yield _Section(f"{culprit.name}: {title}", _Verbatim("\n".join(map(_one_line, moved))), len(moved) > _MANY)
    for title, text in culprit.details:
        if text:
            yield _Section(f"{culprit.name}: {title}", _Verbatim(_excerpt(text)), folded=True)


def _excerpt(text: str) -> str:
    """The end of what came out: there pytest says what it was."""
    lines = [_cut(line) for line in redact(text).strip("\n").split("\n")]
    left = len(lines) - _LINES
    return "\n".join([f"… {plural(left, 'line')} before", *lines[-_LINES:]] if left > 0 else lines)


def _one_line(text: str) -> str:
    return _cut(_joined(text))


def _joined(text: str) -> str:
    return " ".join(redact(text).split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _fill(line: str) -> str:
    return textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _laid_out(body: list[str] | _Table | _Verbatim) -> str:
    if isinstance(body, _Verbatim):
        return body.text
    if isinstance(body, list):
        return "\n".join(map(_fill, body))
    lines = [body.head, *body.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(filter(None, ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)))


def _marked_up(body: list[str] | _Table | _Verbatim) -> str:
    if isinstance(body, _Verbatim):
        return code_block(body.text, body.language)
    if isinstance(body, list):
        return "\n".join(f"- {line}" for line in body)
    lines = [body.head, ("---",) * len(body.head), *body.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    """A code span: GitHub makes no link, mention or formula of what is in it."""
    text = _one_line(text)
    if "|" in text:  # in a table no backslash before it means the same to all
        return f"<code>{without_markup(text)}</code>"
    return code_span(text)


def _prose(text: str) -> str:
    """Text that is no markup."""
    return _unlinked(re.sub(r"[\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w)", lambda found: f"\\{found[0]}", _joined(text)))


def _unlinked(text: str) -> str:
    """No mention of a user, no link to an issue, to no address that was escaped; no end of a heading."""
    return re.sub(r"@(?=\w)|#|:(?=//\S*\\)|www(?=\.\S*\\)", lambda found: f"{found[0]}<!-- -->", text)


_TEXT = _Style(_one_line, _joined)
_MARKDOWN = _Style(_code, _prose)
