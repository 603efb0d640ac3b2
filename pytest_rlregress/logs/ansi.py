"""Text without what a terminal makes of it: colours, titles, moves of the cursor."""

from __future__ import annotations

import re

#: A control sequence, an operating system command (such as a window's title), or any other escape.
SEQUENCE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
_SEQUENCE = re.compile(SEQUENCE)


def stripped(text: str) -> str:
    """A text without escape sequences."""
    return _SEQUENCE.sub("", text)
