"""TRL's own step must work: its GRPOTrainer as it is, chat messages in, a reward on the decoded answer."""

from __future__ import annotations

import pytest

from pytest_rlregress.fixtures.trl_record import check, check_learned

pytestmark = [
    pytest.mark.guards("trl-step"),
    pytest.mark.needs("trl-trainer"),
    pytest.mark.isolated(group="trl"),
]
CPU = pytest.mark.hw("cpu")
GPU = pytest.mark.hw(capability=">=8.0", memory=">=16GiB")
VLLM = pytest.mark.needs("vllm-engine")


@CPU
@VLLM
def test_colocated_engine(trl_step, hardware):
    """At most 1.2e-6 nats apart over 40 steps; 0.07 after one update with the head left as it was (both measured)."""
    run = trl_step.run(steps=10, mode="colocate")
    check(run.records, hardware.step["logprob_tolerance"])
    assert any(any(record.ended) for record in run.records), "no completion ended early: their masks went untested"


def test_generation_by_transformers(trl_step):
    check(trl_step.run(steps=10, mode="hf").records)


@CPU
@VLLM
@pytest.mark.long
def test_server(trl_step, hardware):
    check(trl_step.run(steps=10, mode="server").records, hardware.step["logprob_tolerance"])


@VLLM
@pytest.mark.long
@pytest.mark.parametrize("mode", ["colocate", "hf"])
def test_forty_steps_learn(trl_step, mode):
    check_learned(trl_step.run(steps=40, mode=mode).records)


@GPU
@VLLM
@pytest.mark.parametrize("sleep", [False, True], ids=["awake", "sleep-mode"])
@pytest.mark.parametrize("share", [0.3, 0.4])
def test_colocated_engine_on_a_gpu(trl_step, hardware, share, sleep):
    """The documented shares of the device's memory, bfloat16, nothing in TRL's place."""
    run = trl_step.run(mode="colocate", vllm_gpu_memory_utilization=share, vllm_enable_sleep_mode=sleep)
    assert not run.stand_ins
    check(run.records, hardware.step["logprob_tolerance"], compared="mean")


@pytest.mark.hw(capability=">=8.0", memory=">=16GiB", count=2)
@VLLM
@pytest.mark.long
def test_server_on_a_second_gpu(trl_step, hardware):
    """Weights over NCCL, as TRL sends them."""
    run = trl_step.run(mode="server")
    assert not run.stand_ins
    check(run.records, hardware.step["logprob_tolerance"], compared="mean")
