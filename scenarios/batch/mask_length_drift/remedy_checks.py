"""A mask is as long as its completion, or it is refused."""

import pytest


@pytest.mark.parametrize("mask", [[1], [1, 0, 1], []])
def test_rejects_a_mask_of_another_length(mask):
    from pytest_rlregress.remedies import MaskedCompletion

    assert MaskedCompletion([1], [2, 3], [0, 1]).completion_mask == [0, 1]
    with pytest.raises(ValueError, match=f"a completion of 2 tokens has a mask of {len(mask)}"):
        MaskedCompletion([1], [2, 3], mask)
