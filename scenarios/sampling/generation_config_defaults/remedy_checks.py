"""A field is chosen with a value, or left out."""

import pytest


@pytest.mark.parametrize("name", ["top_k", "seed"])
def test_rejects_none_for_a_choice(subject, name):
    with pytest.raises(ValueError, match=name):
        subject(24, **{name: None})
