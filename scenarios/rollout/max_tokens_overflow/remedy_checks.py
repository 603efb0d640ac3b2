"""The clamp leaves all the room that there is, and refuses where there is none."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.rollout.max_tokens_overflow.test_max_tokens_overflow import (
    LIMIT,
    MAX_TOKENS,
    PROMPT_LENGTH,
    check_clamped,
)


def test_rejects_a_request_for_no_token(subject):
    with pytest.raises(ValueError):  # noqa: PT011, the words are the subject's
        subject(0, PROMPT_LENGTH, LIMIT)


@given(max_tokens=st.integers(1, 10**6), prompt_length=st.integers(1, 10**6), max_model_len=st.integers(1, 10**6))
@example(MAX_TOKENS, PROMPT_LENGTH, LIMIT)
@example(1, LIMIT - 1, LIMIT)
@example(1, LIMIT, LIMIT)
@example(MAX_TOKENS, LIMIT + 1, LIMIT)
@settings(EXAMPLES, max_examples=200)
def test_clamp_leaves_all_the_room(subject, max_tokens, prompt_length, max_model_len):
    check_clamped(subject, max_tokens, prompt_length, max_model_len)
