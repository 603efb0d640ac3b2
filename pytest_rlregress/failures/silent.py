"""How a test of a failure says that the failure happened and nothing told of it."""

from __future__ import annotations

from typing import NoReturn


class SilentFailure(AssertionError):
    """A documented failure that raises nothing happened: whatever the message, its verdict is ``reproduced``."""


def silent(what: str) -> NoReturn:
    """Raise that the failure happened, though the component raised and logged nothing.

    Args:
        what: What was wrong, with the numbers that show it.
    """
    __tracebackhide__ = True
    raise SilentFailure(what)
