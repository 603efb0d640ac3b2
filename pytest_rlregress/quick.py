"""Choose the tests of a quick run: one of each side of every failure that needs no engine, server or Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from pytest_rlregress.containment.grouping import group_of
from pytest_rlregress.stack import PARTS

if TYPE_CHECKING:
    from pytest_rlregress.session import Session

#: What the summary says of a quick run.
SAID = (
    "quick run (--rl-quick): one reproduces and one guard of each failure that needs no engine, server or Ray cluster"
)


def choose(items: Iterable[pytest.Item], run: Session) -> set[pytest.Item]:
    """Return the tests that a quick run keeps: the first of each side, sooner one that needs no process of its own.

    Tests of another suite, which no contained process runs, are kept too.
    """
    kept: set[pytest.Item] = set()
    first: dict[tuple[str, str], tuple[bool, pytest.Item]] = {}
    for item in items:
        side, group = run.side(item), group_of(item)
        if group is None:
            kept.add(item)
        elif side is not None and run.unavailable(item) is None and not PARTS.keys() & {*run.components(item)}:
            key, alone = (side.failure.id, side.name), group.alone or group.fresh
            if key not in first or (first[key][0] and not alone):
                first[key] = alone, item
    return kept | {item for _, item in first.values()}
