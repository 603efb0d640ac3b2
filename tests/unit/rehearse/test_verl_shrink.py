"""What a rehearsal changes in verl's configuration: sizes, not ratios; and what it refuses to rehearse."""

from __future__ import annotations

import pytest

from pytest_rlregress.commands.rehearse.shrink import ChangedValue, Unrehearsed
from pytest_rlregress.commands.rehearse.verl_shrink import find_changes, find_refusal

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SOUND = {
    "trainer.use_v1": True,
    "trainer.v1.trainer_mode": "sync",
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 2,
    "trainer.logger": ["console", "wandb"],
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 1024,
    "algorithm.adv_estimator": "grpo",
    f"{ACTOR}.strategy": "fsdp",
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 16,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 5,
    f"{ROLLOUT}.temperature": 0.7,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
}


def shrink(**changed):
    written = {**SOUND, **changed}
    found = find_changes(written.get, 3, "/rehearsal", 512)
    values = {**written, **{one.key: one.new for one in found if isinstance(one, ChangedValue)}}
    return values, [one.what for one in found if isinstance(one, Unrehearsed)]


def test_ratios_are_kept():
    values, _ = shrink()
    assert (values["data.train_batch_size"], values[f"{ACTOR}.ppo_mini_batch_size"]) == (4, 2)
    assert values[f"{ROLLOUT}.n"] == 5
    assert values[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 5
    values, _ = shrink(**{f"{ACTOR}.ppo_mini_batch_size": 1024, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 320})
    assert (values["data.train_batch_size"], values[f"{ACTOR}.ppo_mini_batch_size"]) == (2, 2)
    assert values[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 10


def test_what_is_the_users_stays():
    values, _ = shrink()
    for key in (f"{ACTOR}.optim.lr", f"{ROLLOUT}.temperature", "algorithm.adv_estimator", "data.max_prompt_length"):
        assert values[key] == SOUND[key]


def test_saving_and_validating_are_forced_on():
    values, _ = shrink(**{"trainer.save_freq": -1, "trainer.test_freq": -1})
    assert [values[f"trainer.{name}"] for name in ("save_freq", "test_freq", "total_training_steps")] == [3, 3, 3]
    assert values["trainer.default_local_dir"] == "/rehearsal/checkpoints"


def test_what_the_rehearsal_has_not_is_named():
    _, unrehearsed = shrink()
    named = {"16 processes", f"{ROLLOUT}.tensor_model_parallel_size 2", "responses of 1024 tokens", "logging to wandb"}
    assert named | {"resuming", "bfloat16"} <= set(unrehearsed)


def test_a_mini_batch_that_does_not_divide_is_named():
    _, unrehearsed = shrink(**{f"{ACTOR}.ppo_mini_batch_size": 300})
    assert "ppo_mini_batch_size 300, which train_batch_size 1024 isn't a multiple of" in unrehearsed


def test_a_length_of_dynamic_batches_holds_two_small_rows():
    values, _ = shrink(**{f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 16384})
    assert values[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 2 * (512 + 16)
    assert values[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 16


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"algorithm.adv_estimator": "gae"}, "algorithm.adv_estimator=gae isn't rehearsed: it needs a critic"),
        ({"trainer.use_v1": False}, "trainer.use_v1=False isn't rehearsed: verl's V1 trainer is"),
        ({f"{ACTOR}.strategy": "megatron"}, "the engine megatron isn't rehearsed: it needs GPUs; FSDP is"),
        ({f"{ROLLOUT}.name": "sglang"}, f"{ROLLOUT}.name=sglang isn't rehearsed: vllm is"),
        ({"reward.reward_model.enable": True}, "a reward model isn't rehearsed: reward functions are"),
        ({"actor_rollout_ref.model.lora_rank": 8}, "LoRA isn't rehearsed with verl"),
        (
            {"trainer.v1.trainer_mode": "separate_async"},
            "trainer.v1.trainer_mode=separate_async isn't rehearsed: sync is",
        ),
    ],
)
def test_what_cannot_be_rehearsed_is_one_sentence(changed, said):
    assert find_refusal({**SOUND, **changed}.get, "") == said
