import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.step_record import check
from pytest_rlregress.fixtures.trl_on_cpu import send_as_released, send_by
from pytest_rlregress.remedies.rollout import reload_by_worker

pytestmark = [pytest.mark.needs("trl-trainer", "vllm-engine"), pytest.mark.isolated(group="trl")]
CPU = pytest.mark.hw("cpu")  # where vLLM packs the weights, and the head apart from the embedding, when it has loaded


def agreement(run, number):
    """TRL's own mean |difference| of the trainer's and the engine's log-probabilities at a step."""
    return run.records[number - 1].disagreement_mean


@CPU
@pytest.mark.reproduces("trl-colocate-load-weights")
def test_sync_as_released(trl_step):
    trl_step.run(steps=1, alter=send_as_released)


@CPU
@pytest.mark.reproduces("trl-colocate-load-weights", fidelity="stand-in")
def test_names_as_released(trl_step, hardware):
    """A sync that vLLM takes, of the names that TRL sends: named_parameters has no tied head."""
    with act():
        run = trl_step.run(steps=3, alter=lambda trainer: send_by(trainer, reload_by_worker))
    assert agreement(run, 1) <= hardware.step["logprob_tolerance"], "engine and trainer differ before any update"
    off = agreement(run, 3)
    if not off <= hardware.step["logprob_tolerance"]:
        silent(f"after two updates the engine is {off:.2g} nats a token from the trainer")


@pytest.mark.guards("trl-colocate-load-weights")
def test_every_update_arrives(trl_step, hardware, subject):
    with act():
        run = trl_step.run(steps=3, alter=lambda trainer: send_by(trainer, subject))
    check(run.records, 3, hardware.step["logprob_tolerance"])
