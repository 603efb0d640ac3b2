"""A documented failure that needs nothing of the stack, and the folders of such failures."""

from __future__ import annotations

import re
from pathlib import Path

FAILURES = """
id = "short-column"
title = "A column is short"
seen_on = "H20"
components = {}
cause = "c"
remedy = "r"

[[signature]]
says = ["AssertionError: column {} is short"]

[[signature]]
signal = "SIGFPE"
"""


def write_failures(folder: Path, text: str) -> None:
    """Write the folder of each failure of a text; an entry begins with a line ``id = "…"``, which names its folder."""
    _, *parts = re.split(r'^id = "(.*)"\n', text, flags=re.MULTILINE)
    for failure_id, entry in zip(parts[::2], parts[1::2], strict=True):
        path = folder / failure_id.replace("-", "_") / "failure.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(entry)
