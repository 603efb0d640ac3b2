"""Types of arguments that several commands take, and how a command's help is laid out, for argparse."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from pytest_rlregress.util import units

T = TypeVar("T")
_DIGITS = 18  # of a number that fits into 64 bits
_LARGEST = 1e18
_SHOWN = 200  # characters


class ManualFormatter(argparse.HelpFormatter):
    """A command's help: paragraphs follow the terminal, and indented lines, such as examples, stay as they are.

    No option's name is broken at its hyphens.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for is_prose, part in groupby(text.splitlines(), lambda line: bool(line) and not line.startswith(" ")):
            some = [*part]
            lines += self._split_lines(" ".join(some), width) if is_prose else some
        return "\n".join(indent + line for line in lines)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def count(text: str) -> int:
    """Read a number from 1 on."""
    if not is_number(text) or not int(text):
        raise argparse.ArgumentTypeError(f"{shorten(text)} isn't a number from 1 on")
    return int(text)


def is_number(text: str) -> bool:
    """Return whether a text is a whole number, of digits that int() takes and a machine can count to."""
    return text.isascii() and text.isdigit() and len(text.lstrip("0")) <= _DIGITS


def positive(text: str) -> float:
    """Read a number above 0, not infinite."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < _LARGEST:
        raise argparse.ArgumentTypeError(f"{shorten(text)} isn't a number above 0")
    return found


def path(text: str) -> Path:
    """Read a path; not an empty one, as of a variable that isn't set, which Python takes for the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("'' isn't a path")
    return Path(text)


def folder(text: str) -> Path:
    """Read the path of a folder that exists."""
    found = path(text)
    if not os.path.isdir(found):
        raise argparse.ArgumentTypeError(f"{shorten(text)} isn't a folder here")
    return found


def output(text: str) -> Path:
    """Read the path of a file that can be written, before there is anything to write."""
    found = path(text)
    above = next(one for one in (found, *found.absolute().parents) if os.path.lexists(one))
    if found == above and os.path.isdir(found):
        raise argparse.ArgumentTypeError(f"{shorten(text)} is a folder: name a file")
    if above != found and not os.path.isdir(above):
        raise argparse.ArgumentTypeError(f"{shorten(text)} can't be written: {above} isn't a folder")
    if not os.access(above, os.W_OK):
        raise argparse.ArgumentTypeError(f"{shorten(text)} can't be written: no permission to write to {above}")
    return found


def shorten(text: str) -> str:
    """Write an argument as an error shows it, however long it is."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def seconds(text: str) -> float:
    """Read a time limit, as ``pytest --rl-timeout`` does."""
    return _checked(units.parse_seconds, text)


def memory(text: str) -> int:
    """Read a limit on memory, as ``pytest --rl-memory`` does."""
    return _checked(units.parse_memory, text)


def _checked(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as allowed:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not allowed. Allowed: {allowed}") from None
