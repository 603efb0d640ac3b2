"""The miniature step must fail when it should: each mutant of it has one fault, caught by the message meant for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytestmark = [
    pytest.mark.isolated(group="training", timeout=300),
    pytest.mark.needs("torch", "transformers", "tensordict", "ray", "vllm"),
]

STALE = "engine and trainer disagree after the update: .* stale or incomplete"
DISAGREE = "engine and trainer disagree before the update"


@pytest.fixture
def mutant(training_step, monkeypatch):
    """``mutant(message, name=function)``: put a faulty function in the step's module and expect that complaint."""
    from pytest_rlregress.fixtures import training_step as module
    from pytest_rlregress.fixtures.step_record import check

    def mutant(message, **faults):
        for name, fault in faults.items():
            monkeypatch.setattr(module, name, fault)
        [record] = training_step.run(steps=1)
        with pytest.raises(AssertionError, match=message):
            check(record, training_step.settings)

    return mutant


@pytest.fixture
def module():
    from pytest_rlregress.fixtures import training_step

    return training_step


def after_the_first(fault, sync):
    """``sync`` for the fresh weights a run begins with, ``fault`` from then on."""
    calls = iter([sync])
    return lambda model, engine: next(calls, fault)(model, engine)


def with_mask(to_batch, fault, module):
    def faulty(*args):
        batch = to_batch(*args)
        tensors = module.tensors_of(batch)
        tensors["response_mask"] = fault(tensors["response_mask"])
        return batch

    return faulty


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_sound_step_passes(training_step, level):
    from pytest_rlregress.fixtures.step_record import check

    [record] = training_step.run(steps=1, level=level)
    check(record, training_step.settings)


def test_no_sync(mutant, module):
    mutant(STALE, sync=after_the_first(lambda model, engine: None, module.sync))


# Of vLLM's fused tensors (query, key, value; gate, up) a missing part is uninitialised memory, now and then NaN, which
# can stay in the KV cache for the tests that follow. These are whole.
@pytest.mark.parametrize(
    "missing",
    [
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.norm.weight",
        "lm_head.weight",  # tied: the state dict's second name for the embedding, and the one the engine needs
    ],
)
def test_one_tensor_missing_from_the_sync(mutant, module, missing):
    import ray

    def sync(model, engine):
        ray.get(engine.load_weights.remote({n: p.detach() for n, p in model.state_dict().items() if n != missing}))

    mutant(STALE, sync=after_the_first(sync, module.sync))


def test_mask_without_the_ending_token(mutant, module):
    mutant("the mask of completion", to_batch=with_mask(module.to_batch, lambda mask: mask * mask.roll(-1, 1), module))


def test_mask_with_the_first_padding(mutant, module):
    mutant("the mask of completion", to_batch=with_mask(module.to_batch, lambda mask: mask | mask.roll(1, 1), module))


def test_attention_to_padding(mutant, module):
    def to_batch(*args):
        batch = sound(*args)
        tensors = module.tensors_of(batch)
        tensors["attention_mask"] = tensors["attention_mask"].clone().fill_(1)
        return batch

    sound = module.to_batch
    mutant(DISAGREE, to_batch=to_batch)


def test_log_probabilities_at_another_temperature(mutant):
    def token_logprobs(model, ids, attention_mask, last):
        logits = model(ids, attention_mask).logits[:, -last - 1 : -1] / 0.9
        return logits.log_softmax(2).gather(2, ids[:, -last:, None]).squeeze(2)

    mutant(DISAGREE, token_logprobs=token_logprobs)


def test_log_probabilities_of_the_next_token(mutant, module):
    sound = module.token_logprobs
    mutant(DISAGREE, token_logprobs=lambda *args: sound(*args).roll(1, 1))


def test_frozen_parameter(mutant, module):
    def train_on(model, *args):
        model.get_parameter(name).requires_grad_(False)
        return sound(model, *args)

    sound, name = module.train_on, "model.layers.0.self_attn.k_proj.weight"
    mutant(f"no finite gradient reached {name}$", train_on=train_on)


def test_gradient_lost_on_the_way(mutant, module):
    def train_on(model, *args):
        hook = model.get_parameter(name).register_hook(lambda gradient: gradient * 0)
        try:
            return sound(model, *args)
        finally:
            hook.remove()

    sound, name = module.train_on, "model.layers.1.self_attn.o_proj.weight"
    mutant(f"the update did not move {name}$", train_on=train_on)


def test_wrong_sign_of_the_loss(mutant, module):
    sound = module.policy_loss
    mutant("wrong sign", policy_loss=lambda *args: -sound(*args))


def test_wrong_sign_of_the_advantages(mutant, module):
    sound = module.group_advantages
    mutant("wrong sign", group_advantages=lambda *args: -sound(*args))


def test_advantages_not_divided_by_their_deviation(mutant):
    def group_advantages(rewards, group_size):
        groups = rewards.view(-1, group_size)
        return (groups - groups.mean(dim=1, keepdim=True)).flatten()

    mutant("not normalised: their standard deviation is", group_advantages=group_advantages)


def test_advantages_normalised_over_the_batch(mutant):
    mutant(
        "not normalised: their mean is", group_advantages=lambda rewards, _: (rewards - rewards.mean()) / rewards.std()
    )


def test_too_small_an_update_is_said(training_step):
    from pytest_rlregress.fixtures.step_record import check

    [record] = training_step.run(steps=1, learning_rate=1e-7)  # less would not move a weight of 1 in float32
    coarse = replace(training_step.settings, logprob_tolerance=1e-3)
    with pytest.raises(AssertionError, match="too little to tell new weights from stale ones"):
        check(record, coarse)
