"""A completion is cut short if the engine says so, or else if its last id isn't an end."""

import pytest


@pytest.mark.parametrize(
    ("ids", "reason", "cut"),
    [
        ([7, 8], "stop", False),  # at a stop string
        ([7, 2], "stop", False),
        ([7, 2], "length", True),  # an end that the request ignored
        ([], "length", True),
        ([7, 2], "abort", True),
        ([], "stop", False),
        ([7, 2], None, False),
        ([7, 0], None, False),
        ([2, 7], None, True),
        ([], None, True),
    ],
)
def test_each_way_to_end(subject, ids, reason, cut):
    assert subject([ids, [5]], [reason, "stop"], [2, 0]) == [cut, False]


def test_rejects_another_number_of_reasons(subject):
    with pytest.raises(ValueError, match=r"\b2 completions\b.*\b1\b"):
        subject([[7, 2], [8, 2]], ["stop"], [2])
