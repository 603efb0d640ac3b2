"""``trainer_step``: steps of any model and settings on one engine, and what it says of arguments that are wrong."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_rlregress.fixtures.step_record import check
from pytest_rlregress.fixtures.step_settings import StepSettings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"level": "tokens"}, "level is 'tokens': Invalid enum value 'tokens'"),
        ({"dtype": "fp8"}, "dtype is 'fp8': Invalid enum value 'fp8'"),
        ({"prompts": "text"}, "prompts is 'text': Expected `int`, got `str`"),
        ({"samples_per_prompt": 1}, "samples_per_prompt is 1: Expected `int` >= 2"),
        ({"response_length": True}, "response_length is True: Expected `int`, got `bool`"),
        ({"learning_rate": 0}, "learning_rate is 0: Expected `float` > 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan: Expected `float` > 0.0"),
        ({"max_grad_norm": float("inf")}, "max_grad_norm is inf: Expected `float` <= 1e+300"),
        ({"clip_low": 1.5}, "clip_low is 1.5: Expected `float` <= 1.0"),
        (
            {"prompt_kind": "random", "max_model_len": 39},
            "max_model_len is 39: allowed is prompt_length + response_length, 40, and more",
        ),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(wrong, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(StepSettings(), **wrong)


def test_accepts_the_smallest_settings():
    StepSettings(prompts=1, samples_per_prompt=2, prompt_length=2, response_length=1, epochs=1, clip_low=1, seed=0)


def test_rejects_wrong_arguments_of_the_factory(trainer_step):
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'levels'"):
        trainer_step(levels="token")
    with pytest.raises(ValueError, match="steps is 0: allowed is 1 and more"):
        trainer_step(steps=0)
    with pytest.raises(ValueError, match="level is 'both'"):
        trainer_step(level="both")


def test_settings_reach_the_step(trainer_step, training_step):
    step = trainer_step(steps=1, level="sequence", prompts=2, samples_per_prompt=3, response_length=8)
    assert step.engine is training_step.engine, "settings that are not the engine's took another one"
    [record] = step.run()
    assert [len(group) for group in record.rewards] == [3, 3]
    assert max(map(len, record.completions)) == 8


def test_rejects_text_longer_than_the_model_allows(trainer_step):
    with pytest.raises(
        ValueError, match=r"max_model_len is 128: allowed for these prompts and a response_length of 120"
    ):
        trainer_step(response_length=120).run()


def test_text_wants_a_tokenizer_of_all_ids(tiny_qwen):
    from pytest_rlregress.fixtures.step_rollout import ending_ids

    with pytest.raises(
        ValueError, match="prompt_kind is 'text': allowed only with a tokenizer of each of the model's 152"
    ):
        ending_ids(StepSettings(), tiny_qwen.tokenizer(), 152064)


def test_each_model_has_its_own_engine(trainer_step, tiny_model):
    before = trainer_step().engine
    step = trainer_step(model=tiny_model("llama"), steps=1)
    assert step.engine is not before
    check(step.run(), 1, step.settings.logprob_tolerance)


def test_an_engine_that_died_is_replaced(trainer_step):
    import ray

    step = trainer_step(steps=1)
    ray.kill(step.engine)
    with pytest.raises(ray.exceptions.RayActorError):
        step.run()
    again = trainer_step(steps=1)
    check(again.run(), 1, again.settings.logprob_tolerance)
