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


def setting(name: str) -> Callable[[str], Any]:
    """A value as pytest's own options have it: ``seconds`` or ``memory`` of the settings."""

    def parse(text: str) -> Any:
        from pytest_rlregress import settings  # with it pytest: not for those who ask for another command

        try:
            return getattr(settings, name)(text)
        except ValueError as allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed. Allowed: {allowed}") from None

    return parse
