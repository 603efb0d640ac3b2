"""Texts for people: on one line, and as Markdown that says no more than the text does."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

#: A terminal's control sequence, an operating system command (such as a window's title), or any other escape.
SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
_SEQUENCE = re.compile(SEQUENCE)


def strip_escapes(text: str) -> str:
    """Return a text without escape sequences."""
    return _SEQUENCE.sub("", text)


def on_one_line(text: str) -> str:
    """Return a message without the line breaks that its writer wrapped it with."""
    return " ".join(text.split())


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most 100 columns that begin so; words, such as paths and names, stay whole."""
    wrap = textwrap.TextWrapper(
        100, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    ).wrap
    return [line for part in text.splitlines() for line in wrap(part)]


def code_span(text: str) -> str:
    """Write a text as Markdown's code, whatever backticks it has; GitHub makes no link, mention or formula of it."""
    fence, space = "`" * (_backticks(text) + 1), " " * ("`" in (text[:1], text[-1:]))
    return text and f"{fence}{space}{text}{space}{fence}"


def code_block(text: str, language: str = "") -> str:
    """Return a text as a block of Markdown's code, whatever backticks are in it."""
    fence = "`" * max(3, _backticks(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def plural(count: int, noun: str) -> str:
    """Write a number with its noun: ``1 run``, ``2 runs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def join_some(names: Sequence[str]) -> str:
    """Name the first three of some, and count the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def clean(text: str) -> str:
    """Put a text from outside on one line, without terminal control characters."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def quoted(text: str) -> str:
    """Return a text from outside as Markdown's code, on one line; plain words and names stay as they are."""
    text = clean(text)
    return text if re.fullmatch(r"[\w .,+=-]*", text) else code_span(text)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, padded so that a terminal can show it."""
    rows = [head, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    return [lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *lines[1:]]
