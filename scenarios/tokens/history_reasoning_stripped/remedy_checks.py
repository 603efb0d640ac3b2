"""Each sampled token is trained on once, behind the tokens that it was sampled behind."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.scenarios.tokens.history_reasoning_stripped.test_history_reasoning_stripped import check_rows
from pytest_rlregress.scenarios.tokens.turns import whole

IDS = st.lists(st.integers(0, 2), max_size=3)


@st.composite
def any_turns(draw):
    """Turns whose prompts go on from the last one, or are cut, or differ in one id, or are others altogether."""
    turns = []
    for _ in range(draw(st.integers(0, 4))):
        prompt = whole(turns[-1]) if turns else []
        change = draw(st.sampled_from(["none", "none", "cut", "one id", "all"]))
        if change == "one id" and prompt:
            prompt[draw(st.integers(0, len(prompt) - 1))] = 9
        prompt = {"cut": prompt[:-1], "all": []}.get(change, prompt) + draw(IDS)
        turns.append((prompt, draw(IDS)))
    return turns


@given(turns=any_turns())
@settings(EXAMPLES, max_examples=150)
def test_rows_of_any_turns(subject, turns):
    check_rows(turns, subject(turns))
