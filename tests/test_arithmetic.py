"""The verifiable task of the trainers' steps."""

from __future__ import annotations

import statistics

import pytest

from pytest_rlregress.fixtures.arithmetic import problems, reward


def test_the_same_seed_gives_the_same_questions():
    assert problems(20, seed=1) == problems(20, seed=1)
    assert problems(20, seed=1) != problems(20, seed=2)
    assert problems(20, tokens=16) != problems(20, tokens=32)


@pytest.mark.parametrize("tokens", [1, 2, 16, 192])
def test_a_question_says_its_answer(tokens):
    for problem in problems(50, tokens):
        asked = problem.messages[-1]["content"]
        assert problem.messages[-1]["role"] == "user"
        assert asked == f"{problem.first} + {problem.second}"
        assert problem.first >= 1
        assert problem.second >= 1
        assert problem.answer == problem.first + problem.second
        assert 2 <= problem.answer <= max(2, round(3.5 * tokens))


def test_tokens_are_counted_from_one():
    with pytest.raises(ValueError, match="tokens is 0"):
        problems(1, tokens=0)


@pytest.mark.parametrize(
    ("text", "answer", "wanted"),
    [
        ("abcd", 4, 1.0),
        ("a b, c.\n1d", 4, 1.0),  # blanks, signs and digits are no letters
        ("äßñ中", 4, 1.0),
        ("abc", 4, 0.75),
        ("abcde", 4, 0.75),
        ("", 4, 0.0),
        ("a" * 20, 4, 0.0),
    ],
)
def test_each_letter_off_costs_the_same(text, answer, wanted):
    assert reward(text, answer) == wanted


def test_random_tokens_earn_half_and_differ():
    import random

    from pytest_rlregress.fixtures import tiny_qwen

    tokenizer = tiny_qwen.build().tokenizer()
    draw = random.Random(0)
    rewards = [
        reward(tokenizer.decode([draw.randrange(1024) for _ in range(16)], skip_special_tokens=True), problem.answer)
        for problem in problems(200)
    ]
    assert 0.4 < statistics.mean(rewards) < 0.7  # 0.55
    assert statistics.stdev(rewards) > 0.1  # 0.17
