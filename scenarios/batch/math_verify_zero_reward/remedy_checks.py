"""Each answer has a solution."""

import pytest


@pytest.mark.parametrize("count", [0, 1])
def test_rejects_another_number_of_solutions(subject, count):
    with pytest.raises(ValueError, match=rf"2.*{count}|{count}.*2"):
        subject(["$1$", "$2$"], ["$1$"] * count, 1.0)
