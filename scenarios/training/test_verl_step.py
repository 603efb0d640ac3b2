"""verl's own step must work: main_ppo with FSDP2, vLLM's async server, Ray and verl's weight transfer, unchanged."""

from __future__ import annotations

import pytest

STEPS = 2
pytestmark = [pytest.mark.guards("verl-step"), pytest.mark.isolated(timeout=900)]


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
@pytest.mark.needs("transfer-queue")
def test_first_step_after_a_checkpoint(verl_step, tmp_path):
    from pytest_rlregress.fixtures import verl_record

    saves = {"trainer.default_local_dir": tmp_path, "trainer.save_freq": 1}
    resumes = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": tmp_path / "global_step_1"}
    through, resumed = verl_step.run(STEPS, settings=saves), verl_step.run(STEPS, settings=resumes)
    verl_record.check(resumed, 1, verl_step.settings.logprob_tolerance)
    verl_record.check_resumed(resumed, through)


@pytest.mark.long
@pytest.mark.hw(capability=">=8.0", memory=">=24GiB")
@pytest.mark.needs("transfer-queue")
@pytest.mark.parametrize("share", [0.4, 0.3])
def test_two_steps_with_the_full_vocabulary(verl_step, share):
    settings = {"actor_rollout_ref.rollout.gpu_memory_utilization": share}
    check(verl_step.run(STEPS, model="full-vocabulary", settings=settings), verl_step.settings)
