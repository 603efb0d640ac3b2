"""Types of arguments that several commands take, and how a command's help is laid out, for argparse."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from pytest_rlregress.util import units

T = TypeVar("T")


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
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a number from 1 on")
    return int(text)


def folder(text: str) -> Path:
    """Read the path of a folder that exists."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} isn't a folder here")
    return Path(text)


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
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed. Allowed: {allowed}") from None
