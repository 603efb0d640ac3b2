"""Groups of another size than the one asked for are refused."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("groups", "size", "told"),
    [
        (["a", "b", "c", "d"], 4, 1),
        (["a", "a", "b", "c", "c"], 2, 1),
        (["a", "a", "a", "a", "b", "b"], 2, 4),
        (["a", "a", "a", "b", "b", "b"], 2, 3),
        (["a", "a", "b"], 3, 2),
        (["a", "a", "a", "b"], 2, 3),
    ],
    ids=["each-of-its-own", "one-of-its-own", "two-prompts-in-one", "all-too-large", "dropped-rows", "moved-row"],
)
def test_other_groups_are_refused(subject, groups, size, told):
    """The message says what the size should be, and what it is of the first group of another."""
    with pytest.raises(ValueError, match=rf"\b{told}\b.*\b{size}\b"):
        subject(groups, size)


@pytest.mark.parametrize("size", [1, 0])
def test_group_of_one_is_none(subject, size):
    with pytest.raises(ValueError, match=rf"\b{size}\b"):
        subject(["a", "b"], size)


def test_which_group(subject):
    """Ids are told as they are, so that the prompt can be found."""
    with pytest.raises(ValueError, match="'prompt 17'"):
        subject(["prompt 3", "prompt 3", "prompt 17"], 2)
