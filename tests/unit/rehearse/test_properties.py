"""Each property of a rehearsed step is turned red by a record of a trainer that breaks it, and by nothing else."""

from __future__ import annotations

import pytest
from rehearsed import COMPLETIONS, PROMPTS, make_record

from pytest_rlregress.commands.rehearse.record import RehearsalRecord, from_plain, make_advantages, to_plain
from pytest_rlregress.fixtures.step_record import find_complaints

NAN = float("nan")
BROKEN = {
    "groups": ({"group_rows": ("a", "b", "a", "b")}, "rows 0 to 1 are one group of 2, but of 2 prompts"),
    "completions": ({"completions": ((5, 6), (9, 7), (8, 9), (5, 5))}, "goes on after the token that ends it"),
    "mask": ({"trained_tokens": ((5, 6), (7, 9, 0), (8, 9), (5, 5))}, "covers 3 tokens"),
    "trained tokens": ({"lengths": (2, 0, 2, 2)}, "1 of 4 completions have no trained token, the first is row 1"),
    "prompts": ({"prompts": PROMPTS[::-1]}, "its text has"),
    "engine's prompts": ({"engine_prompts": PROMPTS[::-1]}, "the engine was given"),
    "rewards used": ({"reward_difference": 0.04}, "differ from the reward functions' by up to 0.04"),
    "rewards given": ({"own_rewards": ((NAN, 1.0), (1.0, 0.0))}, "1 of 4 completions have no reward"),
    "spread of rewards": ({"rewards": ((1.0, 1.0), (0.0, 0.0))}, "equal in every group"),
    "advantages": ({"advantages": tuple(make_advantages(((1.0, 0.0), (0.0, 1.0)), "group", 1e-4))}, "rewards make"),
    "sync": ({"stale": ("lm_head.weight",)}, "other weights than the trainer's: lm_head.weight"),
    "agreement": ({"gap": 0.05, "cause": "0.05 nats a token; at temperature 0.7"}, "temperature 0.7"),
    "cached prompts": ({"cached_gap": 1e-3}, "reset the prefix cache"),
    "ratio": ({"ratio_difference": 0.01}, "the ratio isn't 1"),
    "reference": ({"reference_difference": 0.01, "not_seen": {}}, "the KL divergence isn't 0"),
    "second pass": ({"second_pass": 2e-5, "dropouts": ("lora_dropout 0.05",)}, "lora_dropout 0.05"),
    "micro batches": ({"split_difference": 0.3}, "in two halves it differs by 0.3"),
    "masked tokens": ({"masked_difference": 0.3}, "that the mask leaves out"),
    "loss": ({"loss": 0.1}, "the closed form makes 0"),
    "gradient": ({"grad_norm": 0.0}, "the gradient is zero"),
    "gradient's norm": ({"grad_norm": 2.0}, "the closed form makes 1 of this batch"),
    "direction": ({"direction": -1.0}, "cosine with the closed form's is -1"),
    "gradients": ({"without_gradient": ("head",)}, "no finite gradient reached head"),
    "update": ({"unmoved": ("norm", "head")}, "did not move norm and 1 more"),
}


def test_a_sound_step_has_no_complaint():
    assert list(find_complaints(make_record(), 1e-5)) == []


def test_every_property_has_a_broken_record():
    assert set(BROKEN) == set(RehearsalRecord.properties)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_step_turns_its_property_red(name):
    changed, wanted = BROKEN[name]
    found = list(find_complaints(make_record(**changed), 1e-5))
    assert any(complaint for one, complaint in found if one == name and wanted in complaint), found


@pytest.mark.parametrize(
    "changed",
    [
        {"gap": NAN},
        {"ratio_difference": NAN},
        {"direction": NAN},
        {"loss": NAN},
        {"grad_norm": NAN},
        {"second_pass": NAN},
        {"split_difference": NAN},
    ],
)
def test_not_a_number_is_never_sound(changed):
    assert list(find_complaints(make_record(**changed), 1e-5))


def test_a_number_that_is_missing_is_never_sound():
    [(name, complaint)] = find_complaints(make_record(second_pass=None), 1e-5)
    assert name == "second pass"
    assert "neither seen nor declared not seen" in complaint


def test_completions_that_are_left_out_on_purpose_are_sound():
    masked = {"trained_tokens": ((), *COMPLETIONS[1:]), "lengths": (0, 2, 2, 2), "truncated_masked": True}
    assert list(find_complaints(make_record(**masked), 1e-5)) == []


def test_a_step_without_any_trained_token_is_not():
    masked = {"lengths": (0, 0, 0, 0), "truncated_masked": True}
    assert "every label is masked" in dict(find_complaints(make_record(**masked), 1e-5))["trained tokens"]


def test_dropout_is_named_where_zero_adapters_hide_it():
    found = dict(find_complaints(make_record(second_pass=0.0, dropouts=("lora_dropout.default 0.05",)), 1e-5))
    assert "by lora_dropout.default 0.05" in found["second pass"]


def test_learning_rate_zero_is_named():
    assert ("update", "the learning rate is 0") in list(find_complaints(make_record(learning_rate=0.0), 1e-5))


def test_a_record_is_the_same_after_json():
    import json

    record = make_record()
    assert from_plain(json.loads(json.dumps(to_plain(record)))) == record


def test_advantages_by_each_scale():
    rewards = ((0.0, 1.0), (2.0, 4.0))
    assert make_advantages(rewards, "none", 0.0) == [-0.5, 0.5, -1.0, 1.0]
    assert make_advantages(rewards, "group", 0.0) == pytest.approx([-(0.5**0.5), 0.5**0.5] * 2)
    batch = make_advantages(rewards, "batch", 0.0)
    assert batch == pytest.approx([one / 1.7078251 for one in (-0.5, 0.5, -1.0, 1.0)])


def test_a_completion_without_reward_has_advantage_zero():
    assert make_advantages(((0.0, NAN, 1.0),), "none", 0.0) == [-0.5, 0.0, 0.5]
