"""TRL's own step must work: its GRPOTrainer as it is, chat messages in, a reward on the decoded answer."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures.step_record import check, check_learned, check_resumed

pytestmark = [
    pytest.mark.guards("trl-step"),
    pytest.mark.needs("trl-trainer"),
    pytest.mark.isolated(group="trl"),
]
VLLM = pytest.mark.needs("vllm-engine")


def check_run(run, hardware, steps):
    """In float32 engine and trainer agree in each token; in bfloat16, as on a GPU, it is the mean that is bounded.

    Measured in float32: at most 1.2e-6 nats over 40 steps, and 0.07 after one update with the head left as it was.
    """
    gpu = bool(hardware.nvml_names)
    assert not (gpu and run.stand_ins), f"on a GPU nothing stands in: {run.stand_ins}"
    check(run.records, steps, hardware.step["logprob_tolerance"], compared="mean" if gpu else "max")


@VLLM
def test_colocated_engine(trl_step, hardware):
    with act():
        run = trl_step.run(steps=10, mode="colocate")
    check_run(run, hardware, 10)
    assert any(record.ended_early for record in run.records), "no completion ended early: their masks went untested"


def test_generation_by_transformers(trl_step, hardware):
    with act():
        check_run(trl_step.run(steps=3, mode="hf"), hardware, 3)


ACCUMULATED = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
VARIANTS = {
    "LoRA": {"lora_rank": 8},
    "two-iterations-accumulated": {**ACCUMULATED, "num_iterations": 2},
    "KL": {"beta": 0.04},
    "mean-of-rows": {"loss_type": "grpo", **ACCUMULATED},
    "GSPO": {"importance_sampling_level": "sequence", "num_iterations": 2},
    "long-prompts-twice": {"repeat_long_prompts": True},
}


@VLLM
@pytest.mark.long
@pytest.mark.parametrize("mode", ["colocate", "hf"])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_variants(trl_step, hardware, variant, mode):
    if "lora_rank" in variant:
        pytest.importorskip("peft")
    with act():
        run = trl_step.run(steps=4, mode=mode, **variant)
    check_run(run, hardware, 4)
    if "repeat_long_prompts" in variant:
        assert min(map(len, run.records[0].prompts)) > 128, "a prompt fits into one block of the cache"
        assert {*run.records[0].prompts} == {*run.records[1].prompts}


@pytest.mark.long
def test_first_step_after_a_checkpoint(trl_step, hardware):
    saved = {"save_strategy": "steps", "save_steps": 2}
    with act():
        through = trl_step.run(steps=3, mode="hf", **saved)
        resumed = trl_step.run(steps=3, mode="hf", resume="checkpoint-2", **saved)
        check_run(resumed, hardware, 1)
        check_resumed(resumed.records[0], through.records[2])


@pytest.mark.hw(capability=">=8.0", memory=">=16GiB")
@VLLM
@pytest.mark.parametrize("sleep", [False, True], ids=["awake", "sleep-mode"])
@pytest.mark.parametrize("share", [0.3, 0.4])
def test_shares_of_a_gpu(trl_step, hardware, share, sleep):
    """The documented shares of the device's memory, and weights that are discarded while the trainer works."""
    with act():
        check_run(trl_step.run(vllm_gpu_memory_utilization=share, vllm_enable_sleep_mode=sleep), hardware, 10)


@VLLM
@pytest.mark.long
def test_server(trl_step, hardware):
    """vLLM's own server: on GPUs it has one of its own, and the weights go over NCCL."""
    if hardware.nvml_names:
        import torch

        if torch.cuda.device_count() < 2:
            pytest.skip("the trainer and the server need a GPU each")
    with act():
        check_run(trl_step.run(steps=10, mode="server"), hardware, 10)


@VLLM
@pytest.mark.long
def test_forty_steps_learn(trl_step, hardware):
    with act():
        run = trl_step.run(steps=40, mode="colocate")
    check_run(run, hardware, 40)
    check_learned(run.records)
