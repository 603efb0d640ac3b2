"""verl's own step must work: main_ppo with FSDP2, vLLM's async server, Ray and verl's weight transfer, unchanged."""

from __future__ import annotations

import pytest

STEPS = 2
# An engine that ends with its run says that it ended unexpectedly: what is left to do then is no stall.
pytestmark = [pytest.mark.guards("verl-step"), pytest.mark.isolated(timeout=900, stall=90)]


def check(run, settings):
    from pytest_rlregress.fixtures import verl_record

    verl_record.check(run, STEPS, settings.logprob_tolerance)


@pytest.mark.needs("transfer-queue")
def test_two_steps_of_v1(verl_step):
    check(verl_step.run(STEPS), verl_step.settings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "variant"),
    [
        ("legacy", "plain"),
        pytest.param("v1", "padded", marks=pytest.mark.needs("transfer-queue")),
        pytest.param("v1", "KL loss", marks=pytest.mark.needs("transfer-queue")),
        pytest.param("v1", "merged LoRA", marks=pytest.mark.needs("transfer-queue")),
        pytest.param("v1", "LoRA", marks=pytest.mark.needs("transfer-queue")),
        pytest.param("v1", "dynamic batch size", marks=pytest.mark.needs("transfer-queue")),
    ],
)
def test_two_steps_of_a_variant(verl_step, trainer, variant):
    check(verl_step.run(STEPS, trainer, variant), verl_step.settings)


@pytest.mark.long
@pytest.mark.hw(capability=">=8.0", memory=">=24GiB")
@pytest.mark.needs("transfer-queue")
@pytest.mark.parametrize("share", [0.4, 0.3])
def test_two_steps_with_the_full_vocabulary(verl_step, share):
    settings = {"actor_rollout_ref.rollout.gpu_memory_utilization": share}
    check(verl_step.run(STEPS, model="full-vocabulary", settings=settings), verl_step.settings)
