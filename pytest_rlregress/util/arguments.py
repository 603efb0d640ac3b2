"""Values that several commands take, for argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def count(text: str) -> int:
    """A number from 1 on."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def quantity(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A value as pytest's own options have it: ``quantities.seconds`` or ``quantities.memory``."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except ValueError as allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed. Allowed: {allowed}") from None

    return parse
