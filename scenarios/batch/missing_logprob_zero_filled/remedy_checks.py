"""Only tokens whose log-probability is known are trained on."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES


@given(
    tokens=st.lists(
        st.tuples(st.integers(0, 1), st.none() | st.just(math.nan) | st.just(0.0) | st.floats(-30, -1e-3)), max_size=8
    )
)
@settings(EXAMPLES, max_examples=60)
def test_any_response(subject, tokens):
    """A log-probability of 0 that the engine gave is one: a greedy token is certain."""
    before = [mask for mask, _ in tokens], [logprob for _, logprob in tokens]
    arguments = [*before[0]], [*before[1]]
    mask, logprobs = subject(*arguments)
    assert str(arguments) == str(before), "changes what it is given"
    there = [logprob is not None and not math.isnan(logprob) for logprob in before[1]]
    assert mask == [int(trained and known) for trained, known in zip(before[0], there, strict=True)]
    assert logprobs == [logprob if known else 0.0 for logprob, known in zip(before[1], there, strict=True)]


@pytest.mark.parametrize("length", [0, 4, 6])
def test_rejects_lengths_that_differ(subject, length):
    """Nobody knows which token each of them is of."""
    with pytest.raises(ValueError, match=rf"\b5\b.*\b{length}\b"):
        subject([1] * 5, [-1.0] * length)
