"""The terminal or pipe that a command prints to: how wide its lines may be, and whether it takes colours.

The commands print plain text, which can be copied into an issue as it is, and no colours of their own. The colours are
those of programs that they run.
"""

from __future__ import annotations

import os
import shutil
from typing import TextIO

from pytest_rlregress.util.text import LINE_WIDTH

_NARROWEST = 40


def line_width(stream: TextIO | None) -> int:
    """Return the columns of a line: the terminal's, from 40 to 100; 100 if it isn't one, whatever COLUMNS says.

    Longer lines of prose are hard to read.
    """
    if stream is None or not stream.isatty():
        return LINE_WIDTH
    return max(_NARROWEST, min(LINE_WIDTH, shutil.get_terminal_size((LINE_WIDTH, 24)).columns))


def takes_colours(stream: TextIO) -> bool:
    """Return whether colours may be printed: to a terminal, unless NO_COLOR says no or FORCE_COLOR says yes."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()
