"""Nested tables and lists, as a configuration is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def walk(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every entry below a table or list with its dotted key; entries of a list by number."""
    if isinstance(value, Mapping | list):
        for name, entry in value.items() if isinstance(value, Mapping) else enumerate(value):
            below = f"{key}.{name}" if key else str(name)
            yield below, entry
            yield from walk(entry, below)
