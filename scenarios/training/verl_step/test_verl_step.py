"""verl's own step must work: main_ppo with FSDP2, vLLM's async server, Ray and verl's weight transfer, unchanged."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures import verl_record
from pytest_rlregress.fixtures.step_record import check_learned
from pytest_rlregress.fixtures.verl_record import check_resumed

STEPS = 2
V1 = pytest.mark.needs("transfer-queue")
pytestmark = [pytest.mark.guards("verl-step"), pytest.mark.isolated(timeout=900)]


def check(run, settings, steps=STEPS):
    verl_record.check(run, steps, settings.logprob_tolerance)


@V1
def test_two_steps_of_v1(verl_step):
    with act():
        check(verl_step.run(STEPS), verl_step.settings)


@V1
@pytest.mark.long
@pytest.mark.parametrize("variant", ["padded", "KL loss", "merged LoRA", "LoRA", "dynamic batch size", "asynchronous"])
def test_two_steps_of_a_variant(verl_step, variant):
    with act():
        check(verl_step.run(STEPS, variant=variant), verl_step.settings)


@pytest.mark.long
def test_two_steps_of_the_legacy_trainer(verl_step):
    with act():
        check(verl_step.run(STEPS, "legacy"), verl_step.settings)


@V1
@pytest.mark.long
def test_first_step_after_a_checkpoint(verl_step, tmp_path):
    saves = {"trainer.default_local_dir": tmp_path, "trainer.save_freq": 1}
    resumes = {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": tmp_path / "global_step_1"}
    with act():
        through, resumed = verl_step.run(STEPS, settings=saves), verl_step.run(STEPS, settings=resumes)
    check(resumed, verl_step.settings, 1)
    check_resumed(resumed, through)


@V1
@pytest.mark.long
def test_forty_steps_learn(verl_step):
    with act():
        run = verl_step.run(40)
    check(run, verl_step.settings, 40)
    check_learned(run.steps)


@V1
@pytest.mark.long
@pytest.mark.hw(capability=">=8.0", memory=">=24GiB")
@pytest.mark.parametrize("share", [0.4, 0.3])
def test_two_steps_with_the_full_vocabulary(verl_step, share):
    settings = {"actor_rollout_ref.rollout.gpu_memory_utilization": share}
    with act():
        check(verl_step.run(STEPS, model="full-vocabulary", settings=settings), verl_step.settings)
