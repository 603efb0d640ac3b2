"""What a check finds: one sentence for all of its rows, with the first of them and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SHOWN = 5


@dataclass(frozen=True)
class Place:
    """A row of a batch, and in it the first token that something is wrong with.

    Attributes:
        row: From 0.
        token: From 0, of the column's own second dimension; None where it is the row as a whole.
        text: What stands there.
    """

    row: int
    token: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with one column.

    Attributes:
        check: The check's name.
        column: As the batch names it.
        what: What is wrong, in a sentence that holds for every row of it.
        instead: What to do.
        rows: In how many rows.
        tokens: How many tokens; 0 where it is rows as a whole.
        places: The first rows, at most ``SHOWN``.
    """

    check: str
    column: str
    what: str
    instead: str
    rows: int
    tokens: int = 0
    places: tuple[Place, ...] = ()


def found_tokens(
    check: str,
    column: str,
    bad: torch.Tensor,
    what: str,
    instead: str,
    text: Callable[[int, int], str] = lambda row, token: "",
) -> list[Finding]:
    """Return a finding where ``bad`` has a True, of shape ``(rows, tokens)``, else none."""
    if not bad.any():
        return []
    by_row = bad.sum(dim=1)
    rows = by_row.nonzero()[:, 0]
    first = bad[rows[:SHOWN]].byte().argmax(dim=1)
    places = [
        Place(row, token, text(row, token)) for row, token in zip(rows[:SHOWN].tolist(), first.tolist(), strict=True)
    ]
    return [Finding(check, column, what, instead, len(rows), int(by_row.sum()), tuple(places))]


def found_rows(
    check: str, column: str, rows: Sequence[int], what: str, instead: str, place: Callable[[int], Place] = Place
) -> list[Finding]:
    """Return a finding where there are rows, else none; ``place`` says of a row what stands there."""
    places = tuple(place(row) for row in rows[:SHOWN])
    return [Finding(check, column, what, instead, len(rows), 0, places)] if rows else []


def join_findings(kept: Iterable[Finding], found: Iterable[Finding], start: int) -> list[Finding]:
    """Return findings, and those of the piece that begins at row ``start``; of one sentence about one column one."""
    joined = {(one.column, one.what): one for one in kept}
    for one in found:
        places = tuple(replace(place, row=place.row + start) for place in one.places)
        before = joined.get((one.column, one.what), replace(one, rows=0, tokens=0, places=()))
        rows, tokens = before.rows + one.rows, before.tokens + one.tokens
        joined[one.column, one.what] = replace(
            before, rows=rows, tokens=tokens, places=(before.places + places)[:SHOWN]
        )
    return list(joined.values())
