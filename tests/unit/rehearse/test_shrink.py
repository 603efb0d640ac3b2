"""What a rehearsal changes in a configuration: sizes, not ratios, and nothing that is small already."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pytest_rlregress.commands.rehearse.shrink import ChangedValue, Unrehearsed, find_changes

SOUND = {
    "output_dir": "out",
    "report_to": "none",
    "max_steps": -1,
    "logging_steps": 10,
    "save_steps": 500,
    "warmup_steps": 0,
    "max_completion_length": 512,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_generations": 8,
    "num_iterations": 1,
    "use_cpu": False,
    "bf16": True,
    "optim": "adamw_torch_fused",
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_max_model_length": None,
    "temperature": 0.7,
}


def shrink(world=1, no_engine="", **changed):
    found = find_changes(SOUND | changed, world, 3, "/rehearsal", no_engine)
    values = SOUND | changed | {one.key: one.new for one in found if isinstance(one, ChangedValue)}
    return values, [one.what for one in found if isinstance(one, Unrehearsed)]


def rows(values):
    slices = values["steps_per_generation"] or values["gradient_accumulation_steps"]
    return values["per_device_train_batch_size"] * slices


@pytest.mark.parametrize("world", [1, 8])
@pytest.mark.parametrize("rows_of_a_card", [1, 2, 4, 16])
@pytest.mark.parametrize("accumulated", [1, 2, 4, 6])
@pytest.mark.parametrize("slices", [None, 1, 2, 8])
@pytest.mark.parametrize("generations", [2, 4, 8, 16])
def test_groups_stay_whole_and_ratios_stay(world, rows_of_a_card, accumulated, slices, generations):
    values, _ = shrink(
        world=world,
        per_device_train_batch_size=rows_of_a_card,
        gradient_accumulation_steps=accumulated,
        steps_per_generation=slices,
        num_generations=generations,
    )
    assert rows(values) % values["num_generations"] == 0
    assert rows(values) <= 128
    new = values["steps_per_generation"] or values["gradient_accumulation_steps"]
    assert Fraction(new, values["gradient_accumulation_steps"]) == Fraction(slices or accumulated, accumulated)
    assert (values["gradient_accumulation_steps"] > 1) >= (accumulated > 1)


def test_generation_batch_size_is_written_as_slices():
    values, _ = shrink(generation_batch_size=64, per_device_train_batch_size=8, gradient_accumulation_steps=4)
    assert values["generation_batch_size"] is None
    assert Fraction(values["steps_per_generation"], values["gradient_accumulation_steps"]) == 2


def test_what_the_user_chose_stays():
    values, _ = shrink(num_iterations=2)
    assert values["temperature"] == 0.7
    assert values["num_iterations"] == 2


def test_what_is_small_is_not_told():
    found = find_changes(SOUND | {"max_completion_length": 8}, 1, 3, "/rehearsal")
    assert "max_completion_length" not in [one.key for one in found if isinstance(one, ChangedValue)]


def test_a_key_that_this_release_does_not_have_is_not_set():
    found = find_changes({key: SOUND[key] for key in SOUND if key != "bf16"}, 1, 3, "/rehearsal")
    assert "bf16" not in [one.key for one in found if isinstance(one, ChangedValue)]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"report_to": "wandb"}, "reporting to wandb"),
        ({"report_to": ["wandb"]}, "reporting to ['wandb']"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions"),
        ({"push_to_hub": True}, "pushing to the hub"),
        ({"deepspeed": "zero3.json"}, "deepspeed"),
        ({"optim": "paged_adamw_8bit"}, "the optimizer paged_adamw_8bit"),
        ({"vllm_mode": "server"}, "vLLM's server"),
        ({"vllm_tensor_parallel_size": 4}, "the engine's tensor parallelism"),
        ({"vllm_enable_sleep_mode": True}, "vLLM's sleep mode"),
        ({"resume_from_checkpoint": "out/checkpoint-5"}, "resuming from your checkpoint"),
    ],
)
def test_what_is_left_out_is_named(changed, what):
    assert what in shrink(**changed)[1]


def test_several_processes_are_named():
    assert "8 processes" in shrink(world=8)[1]


def test_no_engine_is_named():
    values, unrehearsed = shrink(no_engine="vllm 0.31.0 is a build for GPUs")
    assert values["use_vllm"] is False
    assert "vLLM" in unrehearsed
