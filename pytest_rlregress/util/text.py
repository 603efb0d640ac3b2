"""Texts for people: on one line, and as Markdown that says no more than the text does."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TextIO

#: Columns of a line that is written to no terminal.
LINE_WIDTH = 100
#: Columns of the lines that ``wrapped`` makes. ``rlregress`` sets it for the terminal that it prints to.
columns: ContextVar[int] = ContextVar("columns", default=LINE_WIDTH)

#: A terminal's control sequence, an operating system command (such as a window's title), or any other escape.
SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
_SEQUENCE = re.compile(SEQUENCE)
#: User and password of a URL.
CREDENTIALS = re.compile(r"(?<!ssh)://[^/\s]*@|://[^/\s:]*:[^/\s]*@")
_SPACE_IN_CODE = "\ufdd0"  # Unicode's noncharacter for a program's own use
# In JSON, also of what is a pair.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|[\xed][\xa0-\xbf]")


def strip_escapes(text: str) -> str:
    """Return a text without escape sequences."""
    return _SEQUENCE.sub("", text)


def make_encodable(value: Any) -> Any:
    """Return a text, or all texts of lists and tables, with halves of characters (lone surrogates) as ``\\ud83d``."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [make_encodable(one) for one in value]
    if isinstance(value, dict):
        return {make_encodable(key): make_encodable(one) for key, one in value.items()}
    return value


def load_encodable(document: bytes) -> Any:
    """Read JSON whose texts are then encoded again: JSON can hold halves of characters, and UTF-8 can't."""
    found = json.loads(document)
    return make_encodable(found) if _HALF.search(document) else found


def show(stream: TextIO, text: str) -> None:
    """Write a text to a stream whatever its encoding: what that doesn't have is written as ``\\xe9``."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def on_one_line(text: str) -> str:
    """Return a message without the line breaks that its writer wrapped it with."""
    return " ".join(text.split())


def wrapped(text: str, first: str = "", rest: str = "", width: int | None = None) -> list[str]:
    """Return lines of at most ``width``, else ``columns``, that begin so; words and code in backticks stay whole."""
    wrap = textwrap.TextWrapper(
        width or columns.get(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ).wrap
    return [line.replace(_SPACE_IN_CODE, " ") for part in text.splitlines() for line in wrap(_hold_code(part))]


def _hold_code(text: str) -> str:
    """Replace the spaces of code in backticks, so that a command that is to be copied stays on one line."""
    if text.count("`") % 2:
        return text
    return re.sub("`[^`]+`", lambda code: code[0].replace(" ", _SPACE_IN_CODE), text)


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


def clean(text: str, most: int = 2000) -> str:
    """Put a text from outside on one line, without terminal control characters, and cut it where it is very long."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 4 * most]).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def clean_lines(text: str, *, colours: bool = False) -> str:
    """Return a text as a terminal may get it: what would move its cursor, change it or turn its lines is ``\ufffd``.

    Args:
        text: Of any origin.
        colours: Whether sequences that only colour stay, such as for a terminal.
    """
    if text.replace("\n", "").isprintable():
        return text
    parts = re.split(r"(\x1b\[[\d;]*m)", text.replace("\r\n", "\n"))
    for at, part in enumerate(parts):
        if at % 2 == 0:
            parts[at] = "".join(sign if _is_shown(sign) else "\ufffd" for sign in part)
        elif not colours:
            parts[at] = ""
    return "".join(parts)


def _is_shown(sign: str) -> bool:
    if sign in "\n\t" or sign.isprintable():
        return True
    turns = "\u202a" <= sign <= "\u202e" or "\u2066" <= sign <= "\u2069"  # the direction of what follows
    return not turns and unicodedata.category(sign) not in ("Cc", "Zl", "Zp")


class CleanStream:
    """A stream of a command: what is printed to it is cleaned, whoever wrote it; all else is the stream's.

    Args:
        stream: Where it is printed to.
        colours: Whether sequences that only colour stay.

    Attributes:
        as_it_is: The stream, for what moves the cursor on purpose.
    """

    def __init__(self, stream: TextIO, *, colours: bool) -> None:
        self.as_it_is = stream
        self._colours = colours

    def write(self, text: str) -> int:
        """Write a text as ``clean_lines`` gives it."""
        self.as_it_is.write(clean_lines(text, colours=self._colours))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Return what the stream has by that name."""
        return getattr(self.as_it_is, name)


def quoted_around_code(text: str) -> str:
    """Return Markdown of others on one line: its code stays code, and all else that isn't plain words becomes code."""
    parts = re.split(r"((?<!`)(`+)(?!`).+?(?<!`)\2(?!`))", clean(text))
    found = []
    for at in range(0, len(parts), 3):
        plain_words = parts[at]
        blank = plain_words[: len(plain_words) - len(plain_words.lstrip())]
        end = plain_words[len(plain_words.rstrip()) :] if plain_words.strip() else ""
        words = plain_words.strip()
        is_plain = re.fullmatch(r"[\w .,:;()+=%'\"?-]*", words) and not words.startswith(("- ", "+ "))
        found += [blank, words if is_plain else code_span(words), end, *parts[at + 1 : at + 2]]
    return "".join(found)


def strip_credentials(url: str) -> str:
    """Return a URL without user and password; the user of ssh stays, which isn't a secret."""
    return CREDENTIALS.sub("://", url)


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
