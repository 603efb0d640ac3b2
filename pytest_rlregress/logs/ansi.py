"""Text without what a terminal makes of it: colours, titles, moves of the cursor."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pytest_rlregress.util.text import strip_escapes


def plain(data: bytes) -> str:
    """Text of a log without escape sequences."""
    return strip_escapes(data.decode(errors="replace"))


def read(path: Path, offset: int, limit: int) -> str:
    """Part of a file as a terminal would show it in the end: no colours, the last state of a progress bar."""
    data = b""
    with suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as file:
        file.seek(offset)
        data = file.read(limit)
    text = plain(data).replace("\0", "")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
