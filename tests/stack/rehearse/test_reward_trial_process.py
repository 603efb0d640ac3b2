"""Reward functions are tried in a process of their own: whatever one does, the rehearsal goes on."""

from __future__ import annotations

import os
import random
import time

import pytest

from pytest_rlregress.commands.rehearse import events, judge_reward, reward_trial

pytestmark = [pytest.mark.isolated(group="rehearse rewards"), pytest.mark.needs("transformers")]
ROW = {"prompt": [{"role": "user", "content": "3 + 4"}], "answer": "7"}


def sound(completions, answer, **columns):
    return [float(right in one[0]["content"]) for one, right in zip(completions, answer, strict=True)]


def hangs_on_long_texts(completions, answer, **columns):
    if len(completions[0][0]["content"]) > 5000:
        time.sleep(60)
    return sound(completions, answer)


def dies_of_an_empty_text(completions, answer, **columns):
    if not completions[0][0]["content"]:
        os._exit(7)
    return sound(completions, answer)


def rolls_dice(completions, answer, **columns):
    return [random.random() for _ in completions]


def gives_one_for_all(completions, answer, **columns):
    return [1.0]


def divides_by_the_words(completions, answer, **columns):
    return [1 / len(one[0]["content"].split()) for one in completions]


async def awaited(completions, answer, **columns):
    return sound(completions, answer)


@pytest.fixture
def try_out(tmp_path, monkeypatch):
    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(reward_trial, "LIMIT", 2.0)

    def try_out(function):
        reward_trial.run(function, [ROW], 4)
        [event] = [one for one in events.read(tmp_path) if one["kind"] == "reward"]
        return judge_reward.judge(event)

    return try_out


@pytest.mark.parametrize("function", [sound, awaited])
def test_a_sound_function(try_out, function):
    assert try_out(function).status == "ok"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (hangs_on_long_texts, "doesn't return of the completion '10,000 characters'"),
        (dies_of_an_empty_text, "its process dies of the completion 'empty'"),
        (rolls_dice, "calls with one completion give"),
        (gives_one_for_all, "gives 1 rewards for 6 completions"),
        (divides_by_the_words, "raises ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_wrong_with_a_function(try_out, function, why):
    assert why in try_out(function).why
