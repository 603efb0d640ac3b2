"""verl's own step must work: main_ppo with FSDP2, vLLM's async server, Ray and verl's weight transfer, unchanged."""

from __future__ import annotations

import pytest

STEPS = 2
pytestmark = [
    pytest.mark.guards("verl-step"),
    pytest.mark.long,
    pytest.mark.isolated(timeout=900),
]


def check(run, settings):
    from pytest_rlregress.fixtures import verl_record

    completions = settings.prompts * settings.samples_per_prompt
    verl_record.check(run, STEPS, completions, settings.logprob_tolerance)


@pytest.mark.parametrize("trainer", ["legacy", pytest.param("v1", marks=pytest.mark.needs("transfer-queue"))])
def test_two_steps_agree(verl_step, trainer):
    check(verl_step.run(STEPS, trainer), verl_step.settings)


@pytest.mark.hw(capability=">=8.0", memory=">=24GiB")
@pytest.mark.parametrize("share", [0.4, 0.3])
def test_two_steps_with_the_full_vocabulary(verl_step, share):
    settings = {"actor_rollout_ref.rollout.gpu_memory_utilization": share}
    check(verl_step.run(STEPS, model="full-vocabulary", settings=settings), verl_step.settings)
