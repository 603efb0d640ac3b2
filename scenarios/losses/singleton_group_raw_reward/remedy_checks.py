"""Groups of another size than the one asked for are refused."""

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
def test_rejects_groups_of_another_size(subject, groups, size, told):
    """The message says what the size should be, and what it is of the first group of another."""
    with pytest.raises(ValueError, match=rf"'[ab]'.*\b{told}\b.*\b{size}\b"):
        subject(groups, size)


@pytest.mark.parametrize("size", [1, 0])
def test_rejects_a_size_below_2(subject, size):
    with pytest.raises(ValueError, match=rf"\b{size}\b"):
        subject(["a", "b"], size)
