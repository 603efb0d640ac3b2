"""Types of arguments that several commands take, for argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pytest_rlregress.util import units

T = TypeVar("T")


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
