"""Lay out an answer as text for a terminal, as Markdown for an issue, and as JSON.

Nothing of it is shown before ``redact``: no credentials of an index, no home folder, no control characters.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from pytest_rlregress.trials.summaries import TrialSummary
from pytest_rlregress.trials.text import redact
from pytest_rlregress.util.text import code_block, code_span, plural, without_markup
from pytest_rlregress.util.units import format_duration

#: Lines that need not be folded.
MANY = 12
_FIRST, _LAST, _LONG = 8, 18, 200  # lines of a text, and characters of a line: an issue may have 65536 in all
_WIDTH = 100


class Style(NamedTuple):
    """How a piece of a line is written: what is quoted (a version, a reason), and what was written to be read."""

    code: Callable[[str], str]
    prose: Callable[[str], str]


class Table(NamedTuple):
    """Rows under a head; cells are in a style already."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Verbatim(NamedTuple):
    """A text as it is."""

    text: str
    language: str = ""


class Section(NamedTuple):
    """A part of an answer under its title, which is not in a style yet."""

    title: str
    body: list[str] | Table | Verbatim
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """An answer in parts.

    Attributes:
        title: What was asked; not in a style yet.
        headline: Writes what was found, sentence by sentence, in a style.
        sections: Writes all else, in the order of how likely it is wanted.
    """

    title: str
    headline: Callable[[Style], Iterable[str]]
    sections: Callable[[Style], Iterable[Section]]


def to_text(document: Document) -> str:
    """Lay out an answer to be read in a terminal; no end of line at its end."""
    parts = ["\n".join(map(_fill, document.headline(TEXT)))]
    for title, body, _ in document.sections(TEXT):
        parts.append(f"{one_line(title)}\n{textwrap.indent(_laid_out(body), '  ')}")
    return "\n\n".join(parts)


def to_markdown(document: Document) -> str:
    """Lay out an answer ready to be pasted into an issue on GitHub."""
    parts = [f"## {_code(document.title)}", *(f"**{line}**" for line in document.headline(MARKDOWN))]
    for heading, body, folded in document.sections(MARKDOWN):
        text = _marked_up(body)
        summary = _unlinked(html.escape(one_line(heading)))
        unfolded = f"### {_prose(heading)}\n\n{text}"
        parts.append(f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>" if folded else unfolded)
    return "\n\n".join(parts) + "\n"


def to_json(document: Document, answer: Any, *, format_: int, exit_code: int) -> dict[str, Any]:
    """Turn an answer into what JSON can hold: its fields by their names, and format, exit_code, summary."""
    return {
        "format": format_,
        "exit_code": exit_code,
        "summary": " ".join(document.headline(TEXT)),
        **_plain(answer),
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {redact(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return redact(value) if isinstance(value, str) else value


def list_trials(tried: Sequence[TrialSummary], seconds: float, style: Style) -> Section:
    """List every trial, in the order of the trying."""
    rows = [
        (
            str(number),
            style.code(one.label),
            one.state.value,
            style.prose(one.verdict),
            f"{one.seconds:.1f}",
            style.code(one.reason),
        )
        for number, one in enumerate(tried, 1)
    ]
    runs = plural(sum(one.runs for one in tried), "run")
    title = f"{plural(len(rows), 'trial')}, {runs}, {format_duration(seconds)} in all"
    return Section(title, Table(("", "candidate", "is", "verdict", "seconds", "why"), rows), folded=True)


def join_names(names: Sequence[str], style: Style) -> str:
    """Name some things, the first dozen of them."""
    more = f" and {len(names) - MANY} more" * (len(names) > MANY)
    return ", ".join(map(style.code, names[:MANY])) + more


def excerpt(text: str) -> str:
    """The first lines and the last of what came out: at its end pytest says what it was."""
    lines = [_cut(line) for line in redact(text).strip("\n").split("\n")]
    between = len(lines) - _FIRST - _LAST
    if between > 1:
        lines[_FIRST:-_LAST] = [f"… {plural(between, 'line')} between"]
    return "\n".join(lines)


def whole(text: str) -> str:
    """All of a text of long lines, in lines that can be read."""
    return "\n".join(map(_fill, redact(text).strip("\n").split("\n")))


def one_line(text: str) -> str:
    """A text on one line, of a length that can be read."""
    return _cut(_joined(text))


def _joined(text: str) -> str:
    return " ".join(redact(text).split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _fill(line: str) -> str:
    return textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _laid_out(body: list[str] | Table | Verbatim) -> str:
    if isinstance(body, Verbatim):
        return body.text
    if isinstance(body, list):
        return "\n".join(map(_fill, body))
    lines = [body.head, *body.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(filter(None, ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)))


def _marked_up(body: list[str] | Table | Verbatim) -> str:
    if isinstance(body, Verbatim):
        return code_block(body.text, body.language)
    if isinstance(body, list):
        return "\n".join(f"- {line}" for line in body)
    lines = [body.head, ("---",) * len(body.head), *body.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    """A code span: GitHub makes no link, mention or formula of what is in it."""
    text = one_line(text)
    if "|" in text:  # in a table no backslash before it means the same to all
        return f"<code>{without_markup(text)}</code>"
    return code_span(text)


def _prose(text: str) -> str:
    """Text that is no markup."""
    return _unlinked(re.sub(r"[\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w)", lambda found: f"\\{found[0]}", _joined(text)))


def _unlinked(text: str) -> str:
    """No mention of a user, no link to an issue, to no address that was escaped; no end of a heading."""
    return re.sub(r"@(?=\w)|#|:(?=//\S*\\)|www(?=\.\S*\\)", lambda found: f"{found[0]}<!-- -->", text)


TEXT = Style(one_line, _joined)
MARKDOWN = Style(_code, _prose)
