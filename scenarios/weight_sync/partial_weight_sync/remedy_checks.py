"""Missing weights are named, and an engine's error is passed on."""

import pytest

from pytest_rlregress.scenarios.weight_sync.partial_weight_sync.test_partial_weight_sync import NAMES


@pytest.mark.parametrize("number", [8, 9, 12])
def test_names_the_first_of_many_missing(subject, number):
    names = [f"layer{at:02}" for at in range(number)]
    with pytest.raises(ValueError, match=rf"\b{number}\b") as error:
        subject(list, [], names)
    assert [name for name in names if name in str(error.value)] == names[:8]


def test_error_of_the_engine_passes_through(subject):
    def load(pairs):
        raise ConnectionError("the engine is gone")

    with pytest.raises(ConnectionError, match="the engine is gone"):
        subject(load, [], NAMES)
