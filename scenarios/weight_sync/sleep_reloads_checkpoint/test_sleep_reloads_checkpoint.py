"""Rollouts of TRL's colocated engine after an update, as its trainer asks for them: of which weights."""

from types import SimpleNamespace

import pytest

from pytest_rlregress.agreement.logprobs import mean_gap, token_logprobs
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures import trl_engine
from pytest_rlregress.fixtures.trl_on_cpu import send_by
from pytest_rlregress.remedies.rollout import reload_weights
from pytest_rlregress.scenarios.rollout.weight_reload_weight_name.new_weights import after_an_update, tolerance

pytestmark = [
    pytest.mark.isolated,
    pytest.mark.needs("trl-trainer", "vllm-engine"),
]
CPU = pytest.mark.hw("cpu")
PROMPT = [[100] * 8]
LENGTHS = {
    "max_model_length": 128,
    "max_completion_length": 16,
    "generation_kwargs": {"ignore_eos": True},
}


def rollout_gaps(generation, rollouts):
    """Return for each rollout after one sync how far the engine is from the trained model, nats a token."""
    gaps = []
    generation.sync_weights()
    for _ in range(rollouts):
        _, [ids], logprobs, *_ = generation.generate(PROMPT, None, 1)
        said = [at[0] if isinstance(at, list) else at for at in logprobs[0]]  # TRL before 1.0: one number
        [wanted] = token_logprobs(generation.model, [PROMPT[0] + ids])
        gaps.append(mean_gap([said], [wanted[-len(ids) :]]))
    return gaps


def started(tiny_qwen, **settings):
    return trl_engine.prepare(tiny_qwen.directory, **LENGTHS, **settings)


def train(generation):
    """Update the trainer's model; on a CPU the engine takes new weights by a way of its own."""
    after_an_update(generation.model)
    send_by(SimpleNamespace(vllm_generation=generation), reload_weights)


@CPU
@pytest.mark.reproduces("sleep-reloads-checkpoint")
@pytest.mark.parametrize("rollouts", [1, 2], ids=["after-a-sync", "again-without-one"])
def test_sleep_mode(tiny_qwen, rollouts):
    """With vllm_enable_sleep_mode; a CPU's engine doesn't sleep, TRL takes the same steps."""
    starting = started(tiny_qwen, enable_sleep_mode=True)
    with starting as generation:
        train(generation)
        with act():
            gaps = rollout_gaps(generation, rollouts)
    if not gaps[-1] < tolerance():
        silent(f"the rollout is {gaps[-1]:.2g} nats a token from the trained model, and no error")


@CPU
@pytest.mark.guards("sleep-reloads-checkpoint")
def test_without_sleep_mode(tiny_qwen):
    starting = started(tiny_qwen)
    with starting as generation:
        train(generation)
        with act():
            gaps = rollout_gaps(generation, 2)
    assert max(gaps) < tolerance()
