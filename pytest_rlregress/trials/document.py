"""An answer of a command as text, Markdown and JSON.

A section's body is laid out once: a terminal shows it as it is, Markdown as a block of code, so that nothing in it is
markup. Nothing is shown before ``redact``: no credentials of an index, no home folder, no control characters.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from pytest_rlregress.util.surroundings import working_folder
from pytest_rlregress.util.text import CREDENTIALS, code_block, code_span, columns, plural, strip_escapes, wrapped

#: Lines that need not be folded.
MANY = 12
_GAP = "  "
_INDENT = 2  # of a section's body, and of what stands below a row
_ROOM = 30  # columns that a table's last one needs
_FIRST, _LAST, _LONG = 8, 18, 200  # lines of a text, and characters of a line: an issue may have 65536 in all


class Section(NamedTuple):
    """A part of an answer under its title; ``language`` is that of a body that can be typed."""

    title: str
    body: str
    folded: bool = False
    language: str = ""


@dataclass(frozen=True)
class Document:
    """An answer as it is told."""

    title: str  # what was asked
    headline: Sequence[str]  # what was found, in sentences
    sections: Sequence[Section]  # all else, in the order of how likely it is wanted
    facts: Any  # what is told, as a dataclass: the fields of the JSON
    format: int  # the form of the JSON: raised when a key changes its meaning or is dropped
    exit_code: int


def to_text(document: Document) -> str:
    """Lay out an answer to be read in a terminal; no end of line at its end."""
    parts = [list_lines(document.headline)]
    parts += [f"{one_line(one.title)}\n{textwrap.indent(one.body, ' ' * _INDENT)}" for one in document.sections]
    return "\n\n".join(parts)


def to_markdown(document: Document) -> str:
    """Lay out an answer ready to be pasted into an issue on GitHub."""
    parts = [f"## {code_span(one_line(document.title))}", *(f"**{code_span(line)}**" for line in document.headline)]
    for one in document.sections:
        begin = f"<details{'' if one.folded else ' open'}><summary><code>{html.escape(one_line(one.title))}</code>"
        parts.append(f"{begin}</summary>\n\n{code_block(one.body, one.language)}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def to_json(document: Document) -> dict[str, Any]:
    """Turn an answer into what JSON can hold: its facts by their names, and format, exit_code, summary."""
    head = {"format": document.format, "exit_code": document.exit_code, "summary": " ".join(document.headline)}
    return {**head, **_redact_all(msgspec.to_builtins(document.facts))}


def _redact_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {redact(key): _redact_all(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redact_all(one) for one in value]
    return redact(value) if isinstance(value, str) else value


# -- the parts of a body ----------------------------------------------------------------------------------------------


def tabulate(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    """Lay out rows in columns; the last is folded, and stands below the others where they leave it no room."""
    lines = [tuple(map(one_line, row)) for row in ([head, *rows] if head else rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    begin = sum(widths) + len(_GAP) * len(widths)
    room = columns.get() - _INDENT - begin
    found = []
    for *cells, last in lines:
        start = "".join(cell.ljust(width) + _GAP for cell, width in zip(cells, widths, strict=True))
        if room < _ROOM:
            found += [start, *wrapped(last, " " * _INDENT, " " * _INDENT, columns.get() - _INDENT)]
        else:
            first, *more = wrapped(last, width=room) or [""]
            found += [start + first, *(" " * begin + line for line in more)]
    return "\n".join(line.rstrip() for line in found)


def list_lines(lines: Iterable[str]) -> str:
    """Lay out lines, the long ones folded."""
    return "\n".join(part for line in lines for part in wrapped(line.replace("\n", " "), rest="  ") or [""])


def join_names(names: Sequence[str]) -> str:
    """Name some things, the first dozen of them."""
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(map(one_line, names[:MANY])) + more


def excerpt(text: str) -> str:
    """Return the first lines and the last of what came out: at its end pytest says what it was."""
    lines = [_cut(line) for line in redact(text).strip("\n").split("\n")]
    between = len(lines) - _FIRST - _LAST
    if between > 1:
        lines[_FIRST:-_LAST] = [f"… {plural(between, 'line')} between"]
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Return a text on one line, of a length that can be read."""
    return _cut(unbroken(text))


def unbroken(text: str) -> str:
    """Return all of a text on one line."""
    return " ".join(redact(text).split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


# -- fit to be shown ---------------------------------------------------------------------------------------------------


def redact(text: str) -> str:
    """Make a text fit to be shown to anyone: no credentials in URLs, no control characters, paths as seen from here.

    Those below the current folder are relative to it; of others the home folder is ``~``.
    """
    text = strip_escapes(text.replace("\r\n", "\n").replace("\r", "\n"))
    text = "".join(character if _is_shown(character) else "\ufffd" for character in text)
    here = str(working_folder()).rstrip("/")
    if here:
        text = re.sub(rf"(?<![\w.~/-]){re.escape(here)}/(?=\w)", "", text)
    return _find_home().sub("~", CREDENTIALS.sub("://***@", text))


def _find_home() -> re.Pattern[str]:
    home = os.path.expanduser("~")
    folders = {folder.rstrip("/") for folder in (home, os.path.realpath(home))} - {"", "~"}
    return re.compile(rf"(?<![\w.~-])(?:{'|'.join(map(re.escape, folders))})(?![\w.-])" if folders else "(?!)")


def _is_shown(character: str) -> bool:
    if character in "\n\t":
        return True
    turns = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"  # the direction of what follows
    return not turns and unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")


def quote_command(command: Sequence[str]) -> str:
    """Write a command as it is typed into a shell, without credentials; the home folder as ``$HOME``."""
    words = (_find_home().split(word) for word in command)
    quoted = ('"$HOME"'.join(part and shlex.quote(redact(part)) for part in parts) for parts in words)
    return " ".join(word or "''" for word in quoted)
