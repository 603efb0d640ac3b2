"""Our own trainer around a real engine must work: vLLM in a Ray actor, GRPO or GSPO, AdamW, weights back to vLLM."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures.step_record import check, check_learned

pytestmark = [pytest.mark.guards("miniature-step"), pytest.mark.needs("vllm-engine")]
MEBIBYTE = 1024**2


@pytest.mark.parametrize("prompts", ["text", "random"])
@pytest.mark.parametrize("level", [pytest.param("token", id="GRPO"), pytest.param("sequence", id="GSPO")])
def test_two_steps_agree(training_step, level, prompts):
    with act():
        records = training_step.run(steps=2, level=level, prompt_kind=prompts)
    check(records, 2, training_step.settings.logprob_tolerance)
    assert sum(record.ended_early for record in records), "no completion ended early: their masks went untested"
    assert any(len(set(map(len, record.prompts))) > 1 for record in records), "no prompt was padded"


def test_forty_more_learn(training_step):
    with act():
        check_learned(training_step.run(steps=training_step.settings.learn_steps))


@pytest.mark.hw(capability=">=7.0")
def test_memory_returns(training_step):
    from pytest_rlregress.fixtures.training_step import device_memory

    with act():
        training_step.run(steps=2)
        before = device_memory()
        training_step.run(steps=4)
        grown = device_memory() - before
    assert grown < 64 * MEBIBYTE, f"four steps left {grown / MEBIBYTE:.0f} MiB of device memory behind"
