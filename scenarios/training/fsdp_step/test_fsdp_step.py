"""A step by verl on two processes must be that of one: FSDP2, LoRA, KL, micro batches, packing, gathered weights."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures.fsdp_record import check_resumed
from pytest_rlregress.fixtures.step_record import check

pytestmark = [
    pytest.mark.guards("fsdp-step"),
    pytest.mark.needs("vllm-engine"),
    pytest.mark.isolated(group="fsdp-step"),
]
ALL = pytest.param({"micro_batch_tokens": 96}, id="all-parameters")  # by tokens, not by rows
LORA = pytest.param({"lora_rank": 8}, id="lora")


def steps_agree(fsdp_step, steps=2, **settings):
    check(fsdp_step.run(steps, **settings), steps, fsdp_step.settings.step.logprob_tolerance)


@pytest.mark.parametrize("trained", [ALL, LORA])
def test_two_processes_do_what_one_does(fsdp_step, trained):
    steps_agree(fsdp_step, **trained, packed="lora_rank" not in trained)


@pytest.mark.parametrize("trained", [ALL, LORA])
def test_resumed_step_is_the_same(fsdp_step, trained, tmp_path):
    with act():
        check_resumed(fsdp_step.resume(tmp_path / "checkpoint", **trained, dropout=0.1))


@pytest.mark.long
@pytest.mark.parametrize("trained", [ALL, LORA])
def test_the_other_way_to_pad(fsdp_step, trained):
    steps_agree(fsdp_step, **trained, packed="lora_rank" in trained)


@pytest.mark.hw(count=2)
@pytest.mark.parametrize("trained", [ALL, LORA])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
def test_two_gpus_do_what_one_does(fsdp_step, trained, packed):
    steps_agree(fsdp_step, **trained, packed=packed, device="cuda")
