"""The miniature step must fail when it should: each mutant of it has one fault, caught by the message meant for it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.isolated(group="training", timeout=300),
    pytest.mark.needs("torch", "transformers", "tensordict", "ray", "vllm"),
]

STALE = "the sync did not bring the engine .* stale or incomplete"
DISAGREE = "engine and trainer disagree, they differ before any update"


KINDS = ["text", "random"]


@pytest.fixture
def text_mutant(training_step, monkeypatch):
    """``text_mutant(message, name=function)``: put a faulty function in its module and expect that complaint."""
    from pytest_rlregress.fixtures import step_rollout
    from pytest_rlregress.fixtures import training_step as module
    from pytest_rlregress.fixtures.step_record import check

    def mutant(message, kind="text", step=training_step, **faults):
        for name, fault in faults.items():
            owner = step_rollout if name in ("text_prompts", "text_reward") else module
            monkeypatch.setattr(owner, name, fault)
        records = step.run(steps=1, prompt_kind=kind)
        with pytest.raises(AssertionError, match=f"^step 1: {message}"):
            check(records, 1, step.settings.logprob_tolerance)

    return mutant


@pytest.fixture(params=KINDS)
def mutant(text_mutant, request):
    """``text_mutant``, and the same with random prompts."""
    return partial(text_mutant, kind=request.param)


@pytest.fixture
def module():
    from pytest_rlregress.fixtures import training_step

    return training_step


def after_the_first(fault, sync):
    """``sync`` for the fresh weights a run begins with, ``fault`` from then on."""
    calls = iter([sync])
    return lambda model, engine: next(calls, fault)(model, engine)


def with_mask(module, name, fault):
    """The batch with another mask of that name."""
    sound = module.to_batch

    def to_batch(*args):
        batch = sound(*args)
        return batch.set(name, fault(batch[name].clone()))

    return to_batch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_sound_step_passes(training_step, level, kind):
    from pytest_rlregress.fixtures.step_record import check

    records = training_step.run(steps=1, level=level, prompt_kind=kind)
    check(records, 1, training_step.settings.logprob_tolerance)
    [record] = records
    assert record.ended_early, "no completion ended early: mutants of the ending would go unseen"


def test_rejects_a_step_without_sync(mutant, module):
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
def test_rejects_a_sync_without_one_tensor(mutant, module, missing):
    import ray

    def sync(model, engine):
        ray.get(engine.load_weights.remote({n: p.detach() for n, p in model.state_dict().items() if n != missing}))

    mutant(STALE, sync=after_the_first(sync, module.sync))


def test_rejects_half_a_sync(mutant, module):
    import ray

    def sync(model, engine):
        first = {n: p.numpy() for n, p in model.state_dict().items() if "layers.1." not in n and "norm" not in n}
        ray.get(engine.load_weights.remote(first))

    mutant(STALE, sync=after_the_first(sync, module.sync))


def without_the_first_token(mask):
    mask[range(len(mask)), mask.argmax(dim=1)] = 0
    return mask


@pytest.mark.parametrize(
    ("message", "name", "fault"),
    [
        ("the mask of a completion", "response_mask", lambda mask: mask * mask.roll(-1, 1)),
        ("the mask of a completion", "response_mask", lambda mask: mask | mask.roll(1, 1)),
        ("the prompt of completion .* has the tokens", "attention_mask", lambda mask: mask.fill_(1)),
        ("the prompt of completion .* has the tokens", "attention_mask", without_the_first_token),
    ],
    ids=["without the ending token", "with the first padding", "padding as prompt", "prompt without its first token"],
)
def test_rejects_another_mask(mutant, module, message, name, fault):
    mutant(message, to_batch=with_mask(module, name, fault))


def test_rejects_attention_to_padding(mutant, module):
    sound = module.token_logprobs
    mutant(DISAGREE, token_logprobs=lambda model, ids, mask, last: sound(model, ids, mask.clone().fill_(1), last))


@pytest.mark.parametrize("fault", [lambda ids: [ids[0], *ids], lambda ids: ids[:-3]], ids=["doubled", "no answer turn"])
def test_rejects_a_prompt_that_is_not_from_the_template(text_mutant, fault):
    from pytest_rlregress.fixtures import step_rollout

    def text_prompts(*args):
        return [replace(prompt, ids=fault(prompt.ids)) for prompt in sound(*args)]

    sound = step_rollout.text_prompts
    text_mutant("the prompt of completion .* has the tokens", text_prompts=text_prompts)


def test_rejects_rewards_for_control_tokens(text_mutant):
    from pytest_rlregress.fixtures import arithmetic

    def text_reward(ids, tokenizer, answer):
        return arithmetic.reward(tokenizer.decode(ids), answer)

    text_mutant("the reward of completion .* is", text_reward=text_reward)


def test_rejects_the_reward_of_another_prompt(text_mutant):
    from pytest_rlregress.fixtures import step_rollout

    def text_prompts(*args):
        prompts = sound(*args)
        rotated = [*prompts[1:], prompts[0]]
        return [replace(prompt, reward=other.reward) for prompt, other in zip(prompts, rotated, strict=True)]

    sound = step_rollout.text_prompts
    text_mutant("the reward of completion .* is", text_prompts=text_prompts)


class WithoutEnding:
    """A rollout actor whose completions lack the token that ended them."""

    def __init__(self, engine):
        self.engine, self.generate = engine, self

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def remote(self, *args, **sampling):
        import ray

        return ray.put([self.cut(one) for one in ray.get(self.engine.generate.remote(*args, **sampling))])

    def cut(self, one):
        kept = len(one.ids) - (one.finish_reason == "stop")
        return replace(one, ids=one.ids[:kept], logprobs=one.logprobs[:kept]) if kept else one


def test_rejects_an_engine_that_leaves_out_the_ending_token(mutant, training_step):
    mutant(
        "completion .* tokens, asked for were 16, and none of them ends it",
        step=replace(training_step, engine=WithoutEnding(training_step.engine)),
    )


def test_rejects_log_probabilities_at_another_temperature(mutant):
    def token_logprobs(model, ids, attention_mask, last):
        logits = model(ids, attention_mask).logits[:, -last - 1 : -1] / 0.9
        return logits.log_softmax(2).gather(2, ids[:, -last:, None]).squeeze(2)

    mutant(DISAGREE, token_logprobs=token_logprobs)


def test_rejects_log_probabilities_of_the_next_token(mutant, module):
    sound = module.token_logprobs
    mutant(DISAGREE, token_logprobs=lambda *args: sound(*args).roll(1, 1))


def test_rejects_a_frozen_parameter(mutant, module):
    def train_on(model, *args):
        model.get_parameter(name).requires_grad_(False)
        return sound(model, *args)

    sound, name = module.train_on, "model.layers.0.self_attn.k_proj.weight"
    mutant(f"no finite gradient reached {name}$", train_on=train_on)


def test_rejects_a_lost_gradient(mutant, module):
    def train_on(model, *args):
        hook = model.get_parameter(name).register_hook(lambda gradient: gradient * 0)
        try:
            return sound(model, *args)
        finally:
            hook.remove()

    sound, name = module.train_on, "model.layers.1.self_attn.o_proj.weight"
    mutant(f"the update did not move {name}$", train_on=train_on)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("the update lowered the log-probability of the better completions", lambda loss: -loss),
        ("the loss is", lambda loss: loss / 2),
    ],
    ids=["sign", "scale"],
)
def test_rejects_another_loss(mutant, module, message, change):
    sound = module.policy_loss
    mutant(message, policy_loss=lambda *args: change(sound(*args)))


def centred(rewards, group_size):
    groups = rewards.view(-1, group_size)
    return (groups - groups.mean(dim=1, keepdim=True)).flatten()


@pytest.mark.parametrize(
    "advantages",
    [
        lambda rewards, size: -centred(rewards, size),
        centred,
        lambda rewards, size: (rewards - rewards.mean()) / rewards.std(),
    ],
    ids=["sign", "no deviation", "over the batch"],
)
def test_rejects_other_advantages(mutant, advantages):
    mutant("the advantage of completion", group_advantages=advantages)


def test_rejects_an_update_too_small_to_tell(training_step):
    from pytest_rlregress.fixtures.step_record import check

    records = training_step.run(steps=1, learning_rate=1e-7)  # less would not move a weight of 1 in float32
    with pytest.raises(AssertionError, match="too little to tell new weights from stale ones"):
        check(records, 1, tolerance=1e-3)
