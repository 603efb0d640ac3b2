"""The keys and values that a trainer takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Tables of verl's that are handed on to something else, whatever is in them.
_HANDED_ON = re.compile(r"kwargs|override|env_vars|extra_|_configs?_dict|hydra|defaults")


@dataclass(frozen=True)
class Schema:
    """What a trainer's configuration may hold.

    Attributes:
        source: Whose keys these are: ``verl 0.9.1``.
        complete: Whether they are all there are, and not only those that preflight reads.
        keys: Dotted, tables among them.
        tables: Those of the keys that hold further keys, all of which are known.
        fields: By table, those that its dataclass takes besides; a table with one refuses others.
        values: By key, the texts that are allowed.
        defaults: By key, as far as they are known.
        preset: Those of the keys that have a value before any is given, whatever the engine.
    """

    source: str
    complete: bool
    keys: frozenset[str]
    tables: frozenset[str] = frozenset()
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    preset: frozenset[str] = frozenset()
    folder: Path | None = None

    def unknown(self, key: str) -> str | None:
        """Return the part of a dotted key, from its beginning, that is not known; None for a key that may be there."""
        names = key.split(".")
        for depth in range(1, len(names) + 1):
            part = ".".join(names[:depth])
            if _HANDED_ON.search(names[depth - 1]) or names[depth - 1].startswith("_") or names[depth - 1].isdecimal():
                return None
            if part not in self.keys and names[depth - 1] not in self.fields.get(".".join(names[: depth - 1]), ()):
                return part
            if part not in self.tables:
                return None
        return None

    def beside(self, key: str) -> dict[str, str]:
        """Return the known keys of the same table, dotted, by their names."""
        table = key.rpartition(".")[0]
        return {one.rpartition(".")[2]: one for one in self.keys if one.rpartition(".")[0] == table}

    def elsewhere(self, key: str) -> str | None:
        """Return the known key of the same name in another table: in the largest section, nearest to the top."""
        name = key.rpartition(".")[2]
        found = [one for one in self.keys if one.rpartition(".")[2] == name]
        sizes = Counter(one.partition(".")[0] for one in self.keys)
        return min(found, key=lambda one: (-sizes[one.partition(".")[0]], one.count("."), one), default=None)
