"""The files that the documents print, ```` ```language file=PATH ````, in full."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
_BLOCK = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(document):
    """A document as it stands."""
    return (DOCS / document).read_text()


def files(*documents):
    """What the documents print, by path."""
    return {path: text for document in documents for path, text in _BLOCK.findall((DOCS / document).read_text())}


def write(files, folder):
    """Put files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def find_fixtures():
    """The names of all fixtures of the plugin that a test may ask for."""
    found = (CHECKOUT / "fixtures").glob("declare_*.py")
    return {
        name
        for path in found
        for name in re.findall(r"^@pytest\.fixture.*\n(?:@.*\n)*def ([a-z]\w+)", path.read_text(), re.M)
    }
