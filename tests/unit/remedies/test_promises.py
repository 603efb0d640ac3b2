"""Mutants derived from a docstring: which are, and that each breaks what it says and nothing where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from promises import in_place, promises_of, rows, values
from promises.broken import ENTERED


def shares(rewards: list[float], total: float, *, rounded: bool = False) -> list[float]:
    """Divide.

    Args:
        rewards: Left as they are.
        total: Of all.
        rounded: Whether to whole numbers.

    Returns:
        A new list.

    Raises:
        ValueError: ``total`` is 0.
    """
    if not total:
        raise ValueError("nothing to divide by")
    return [round(reward / total) if rounded else reward / total for reward in rewards]


STATE = []


@contextmanager
def entered(value: int) -> Iterator[list[int]]:
    """Within it, the state has a value."""
    STATE.append(value)
    try:
        yield STATE
    finally:
        STATE.pop()


def broken(function, name, noted):
    [promise] = [one for one in promises_of(function) if one.name == name]
    return promise.broken(function, lambda: noted.append(name))


def test_what_is_derived():
    names = [promise.name for promise in promises_of(shares)]
    assert names == [
        "does-nothing",
        "changes-rewards-contents",
        "changes-rewards-itself",
        "keeps-first-total",
        "ignores-rounded",
        "swallows-ValueError",
        "raises-not-ValueError",
        "returns-none",
        "alters-last",
        "alters-first",
        "drops-last",
        "reorders",
        "rounds",
        "aliases",
    ]
    words = {promise.name: promise.words for promise in promises_of(shares)}
    assert words["swallows-ValueError"] == "Raises ValueError: ``total`` is 0."


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("does-nothing", [1.0, 2.0]),
        ("ignores-rounded", [1.0, 2.0]),
        ("returns-none", None),
        ("alters-last", [1, 3]),
        ("alters-first", [2, 2]),
        ("drops-last", [1]),
        ("reorders", [2, 1]),
    ],
)
def test_other_results(name, result):
    noted = []
    assert broken(shares, name, noted)([1.0, 2.0], 1.0, rounded=True) == result
    assert noted == [name]


def test_lower_precision_and_none_to_lose():
    noted = []
    assert broken(shares, "rounds", noted)([0.5], 1.0) == [0.5]
    assert not noted, "0.5 is the same in float32"
    assert broken(shares, "rounds", noted)([0.1], 1.0)[0] == pytest.approx(0.1, rel=1e-7)
    assert noted


def test_arguments_changed_in_place():
    for name, left in (("changes-rewards-contents", [1.0, 3.0]), ("changes-rewards-itself", [1.0, 2.0, 2.0])):
        given = [1.0, 2.0]
        assert broken(shares, name, [])(given, 1.0) == [1.0, 2.0]
        assert given == left


def test_errors_swallowed_and_exchanged():
    noted = []
    assert broken(shares, "swallows-ValueError", noted)([1.0], 0.0) == [1.0]
    with pytest.raises(Exception, match="nothing to divide by") as raised:
        broken(shares, "raises-not-ValueError", noted)([1.0], 0.0)
    assert not isinstance(raised.value, ValueError)
    assert len(noted) == 2


def test_a_context_that_is_not_undone():
    with broken(entered, "undoes-nothing", [])(1) as state:
        assert state == [1]
    assert STATE == [1]
    ENTERED.clear()
    with pytest.raises(KeyError), broken(entered, "undoes-after-success-only", [])(1):
        raise KeyError
    assert STATE == [1]
    ENTERED.clear()
    with broken(entered, "swallows-the-blocks-error", [])(1):
        raise KeyError
    assert STATE == []


def test_results_that_are_the_arguments():
    given = {"inside": [1]}
    assert rows.aliased({"inside": [1], "more": 2}, (given,))["inside"] is given["inside"]
    with pytest.raises(values.NoChange):
        rows.aliased({"inside": [2]}, (given,))


@pytest.mark.parametrize("change", [in_place.spoil_itself, values.rounded, values.detached, rows.in_reverse])
def test_nothing_to_change(change):
    with pytest.raises(values.NoChange):
        change(7)
