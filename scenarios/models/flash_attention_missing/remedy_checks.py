"""An implementation that needs no package is kept."""

import pytest


@pytest.mark.parametrize("wanted", ["sdpa", "eager", "flex_attention", "paged|flash_attention_2"])
def test_what_can_be_used_is_kept(subject, wanted):
    assert subject(wanted) == wanted
