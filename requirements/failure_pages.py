"""Writes docs/failures: a page for each failure, with what it shows on which stack, and the index."""

from __future__ import annotations

import stacks_page
from building import CHECKOUT

from pytest_rlregress.commands.list.failure_page import index, page
from pytest_rlregress.failures import catalogue

FOLDER = CHECKOUT / "docs" / "failures"


def pages() -> dict[str, str]:
    """Return the pages and the index, by the name of the file."""
    known, stacks = catalogue.load([catalogue.SHIPPED]), stacks_page.shipped_stacks()
    found = {"README.md": index(known.values())}
    for failure in known.values():
        cells = [(stack.name, stacks_page.cell(stack.record, failure.id)) for stack in stacks]
        found[f"{failure.id}.md"] = page(failure, [one for one in cells if one[1] != "- / -"])
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    written = pages()
    for file in FOLDER.glob("*.md"):
        if file.name not in written:
            file.unlink()
    for name, text in written.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
