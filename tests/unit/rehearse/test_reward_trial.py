"""A reward function on trial: what it gives of answers that are known, and what is said of it."""

from __future__ import annotations

import pytest

from pytest_rlregress.commands.rehearse import judge_reward
from pytest_rlregress.commands.rehearse.reward_trial import FORMS, LONG, make_cases, make_wrong


def trial(case, *values, asked=None, **more):
    return {
        "case": case,
        "values": list(values),
        "asked": len(values) if asked is None else asked,
        "seconds": 0.0,
    } | more


def judge(*trials, uses_gold=True):
    return judge_reward.judge({"name": "mine", "uses_gold": uses_gold, "rows": 4, "trials": list(trials)})


SOUND = (trial("right", 0.0, 1.0), trial("wrong", 0.0, 0.0), trial("empty", 0.0), *[trial("alike", 1.0)] * 10)


def test_a_sound_function():
    assert judge(*SOUND).status == "ok"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"case": "empty", "hung": True}, "doesn't return of the completion 'empty'"),
        ({"case": "empty", "died": True}, "its process dies of the completion 'empty'"),
        ({"case": "empty", "error": "IndexError: x", "seconds": 0.0}, "raises IndexError: x"),
        (trial("4 completions", 1.0, asked=4), "gives 1 rewards for 4 completions"),
        (trial("4 completions", 1.0, 0.0, 1.0, 1.0), "equal completions of one call"),
        (trial("empty", float("nan")), "gives NaN"),
        (trial("empty", "the text 'yes'"), "gives the text 'yes'"),
        ({"case": "empty", "values": "float", "asked": 1, "seconds": 0.0}, "gives a float"),
        (trial("alike", 0.5), "10 calls with one completion give 2 rewards"),
    ],
)
def test_what_is_wrong_with_a_function(more, why):
    sound = SOUND if more["case"] != "alike" else SOUND[:-1]
    assert why in judge(*sound, more).why


def test_the_right_answer_must_score_above_nothing():
    row = judge(trial("right", 0.0), trial("wrong", 0.0), trial("empty", 0.0))
    assert "no form of the right answer" in row.why
    assert row.status == "finding"


def test_a_function_that_does_not_ask_for_the_answer_is_not_judged_by_it():
    assert judge(trial("right", 0.0), trial("empty", 0.0), uses_gold=False).status == "not checked"


def test_an_inverted_function():
    assert "no form" in judge(trial("right", -1.0), trial("wrong", 0.0), trial("empty", 0.0)).why


@pytest.mark.parametrize(("gold", "wrong"), [("12", "13"), ("x = 9 cm", "x = 10 cm"), ("yes", "seyx"), (5, "6")])
def test_a_wrong_answer_is_another_one(gold, wrong):
    assert make_wrong(gold) == wrong


def test_cases_have_each_form_of_the_answer():
    cases = make_cases("12")
    assert len(cases["right"]) == len(cases["wrong"]) == len(FORMS)
    assert all("12" in one for one in cases["right"])
    assert "12" not in "".join(cases["wrong"])
    assert len(cases[f"{LONG:,} characters"][0]) == LONG


def test_cases_without_an_answer():
    assert "right" not in make_cases(None)
