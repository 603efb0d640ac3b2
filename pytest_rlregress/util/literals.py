"""Plain texts that a regular expression's matches must contain: finding these first is faster than the expression."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

_TOKEN = re.compile(
    r"""
    \\(?P<escaped>[^\w])
  | \((?:\?:)?(?P<words>[\w -]+(?:\|[\w -]+)*)\)
  | (?P<special>\\. | \[\^?\]?(?:\\.|[^\]])*\] | \{\d*,?\d*\} | [.^$()|*+?])
  | (?P<plain>.)
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class Pattern:
    """A regular expression, compiled when it is first searched for: a run searches for few of the catalogue's."""

    pattern: str

    @cached_property
    def search(self) -> Callable[[str], re.Match[str] | None]:
        """Find the first match in a text; lines are lines, and a dot matches their ends too."""
        return re.compile(self.pattern, re.DOTALL | re.MULTILINE).search


@cache
def literals(pattern: Pattern) -> frozenset[str]:
    """Return texts, one of which is in every match; the empty text among them where nothing is known of one."""
    if pattern.pattern.startswith("(?i)"):
        return frozenset({""})
    longest = [max(runs, key=_length) for runs in _literal_runs(pattern.pattern)]
    return frozenset("".join(pieces).strip() for run in longest for pieces in product(*run))


def _length(run: list[tuple[str, ...]]) -> int:
    return sum(min(map(len, piece)) for piece in run)


def _literal_runs(pattern: str) -> list[list[list[tuple[str, ...]]]]:
    """Return characters in a row that every match has, for each of a pattern's outermost alternatives."""
    alternatives: list[list[list[tuple[str, ...]]]] = [[[]]]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        runs, special = alternatives[-1], token["special"]
        piece = token["escaped"] or token["plain"]
        if special and special[0] in "?*{" and runs[-1]:
            runs[-1].pop()
        if depth == 0 and piece:
            runs[-1].append((piece,))
        elif depth == 0 and token["words"]:
            runs[-1].append(tuple(token["words"].split("|")))
        else:
            runs.append([])
        depth += (special == "(") - (special == ")")
        if special == "|" and depth == 0:
            alternatives.append([[]])
    return alternatives
