"""Numbers that aren't compute capability are refused."""

import pytest


@pytest.mark.parametrize("capability", [(120, -1), (0, 0), (9, 10)], ids=str)
def test_rejects_what_is_no_capability(subject, capability):
    with pytest.raises(ValueError, match=r"capability"):
        subject(capability)


def test_the_least_and_the_largest(subject):
    """The first one that there was, and one of two digits."""
    assert (subject((1, 0)), subject((12, 9))) == ("1.0+PTX", "12.9+PTX")
