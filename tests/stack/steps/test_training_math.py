"""The step's loss, advantages and gradients against verl's and TRL's own functions on the same batch."""

from __future__ import annotations

import heapq
import random
import statistics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_rlregress.hardware.profiles import load_profiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.isolated(group="training-math", timeout=300),
    pytest.mark.needs("torch", "transformers"),
]

CLIPS = [(0.2, 0.28), (3e-4, 4e-4)]  # as GRPO's successors and as GSPO's paper clip
LEVELS = ["token", "sequence"]
PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def off_policy(lengths, scale, seed):
    """Log-probabilities before and after some updates that moved them by about ``scale``, advantages and a mask."""
    import torch

    from pytest_rlregress.fixtures.step_batch import completion_mask

    draw = torch.Generator().manual_seed(seed)
    mask = completion_mask(lengths, max(lengths))
    old_logprobs = -3 * torch.rand(mask.shape, generator=draw)
    logprobs = old_logprobs + scale * torch.randn(mask.shape, generator=draw)
    advantages = torch.randn(len(lengths), generator=draw)
    return logprobs.requires_grad_(), old_logprobs, advantages, mask


@pytest.mark.needs("verl")
@PROPERTY
@given(
    st.integers(2, 6).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.lists(st.integers(0, 16), min_size=n, max_size=n), min_size=1, max_size=4),
        )
    )
)
def test_group_advantages_are_verls(drawn):
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    from pytest_rlregress.fixtures.step_batch import completion_mask
    from pytest_rlregress.fixtures.training_step import group_advantages

    group_size, groups = drawn
    rewards = torch.tensor(groups).flatten() / 16
    mask = completion_mask([1 + i % 3 for i in range(len(rewards))], 3)
    token_rewards = torch.zeros(mask.shape)
    token_rewards[:, 0] = rewards
    index = np.arange(len(rewards)) // group_size
    wanted, _ = compute_grpo_outcome_advantage(token_rewards, mask, index)
    torch.testing.assert_close(group_advantages(rewards, group_size).unsqueeze(1) * mask, wanted)


def neighbouring_shares(longest):
    """Every two shares k/n, n up to ``longest``, that have none between them (a Farey sequence)."""
    a, b, c, d = 0, 1, 1, longest
    while c <= d:
        yield a / b, c / d
        k = (longest + b) // d
        a, b, c, d = c, d, k * c - a, k * d - b


@pytest.mark.parametrize("profile", sorted(load_profiles()))
def test_sound_advantages_of_any_profile_are_called_normalised(profile):
    """Rewards are shares of tokens. Where they nearly agree, epsilon and float32 show in what is sound all the same."""
    import torch

    from pytest_rlregress.fixtures.step_properties import advantage_slack, wanted_advantages
    from pytest_rlregress.fixtures.training_step import EPSILON, group_advantages

    step, draw = load_profiles()[profile].step, random.Random(0)
    size, longest = step["samples_per_prompt"], step["response_length"]
    closest = heapq.nsmallest(3000, neighbouring_shares(longest), key=lambda pair: pair[1] - pair[0])
    groups = [[0.5] * size, *([*pair, *draw.choices(pair, k=size - 2)] for pair in closest)]
    for _ in range(10_000):
        lengths = [draw.randint(1, longest) for _ in range(size)]
        groups.append([draw.randint(0, length) / length for length in lengths])
    found = group_advantages(torch.tensor(groups).flatten(), size).view(-1, size).tolist()
    for rewards, advantages in zip(groups, found, strict=True):
        wanted, slack = wanted_advantages([rewards], EPSILON), advantage_slack(statistics.stdev(rewards), EPSILON)
        off = [abs(one - right) for one, right in zip(advantages, wanted, strict=True)]
        assert max(off) <= slack
        if statistics.stdev(rewards) > 1e-3:
            assert slack < 0.01 * max(map(abs, wanted))


@pytest.mark.needs("verl")
@pytest.mark.parametrize("level", LEVELS)
@PROPERTY
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    scale=st.sampled_from([0.0, 1e-4, 0.3, 2.0]),
    clip=st.sampled_from(CLIPS),
    seed=st.integers(0, 2**31),
)
def test_policy_loss_and_its_gradient_are_verls(level, lengths, scale, clip, seed):
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig

    from pytest_rlregress.fixtures.training_step import policy_loss

    logprobs, old_logprobs, advantages, mask = off_policy(lengths, scale, seed)
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=clip[0],
        clip_ratio_high=clip[1],
        clip_ratio_c=1e9,  # the second bound for negative advantages: neither paper has it
    )
    wanted, _ = get_policy_loss_fn({"token": "vanilla", "sequence": "gspo"}[level])(
        old_log_prob=old_logprobs,
        log_prob=logprobs,
        advantages=advantages.unsqueeze(1) * mask,
        response_mask=mask,
        loss_agg_mode="seq-mean-token-mean",
        config=config,
    )
    loss = policy_loss(logprobs, old_logprobs, advantages, mask, level, *clip)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(value, logprobs)[0] for value in (loss, wanted)))


@pytest.mark.parametrize("level", LEVELS)
def test_clipping_stops_only_what_went_too_far(level):
    import torch

    from pytest_rlregress.fixtures.step_batch import completion_mask
    from pytest_rlregress.fixtures.training_step import policy_loss

    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    logprobs = ratios.log().unsqueeze(1).requires_grad_()
    mask = completion_mask([1] * 5, 1)
    policy_loss(logprobs, torch.zeros(5, 1), advantages, mask, level, 0.2, 0.28).backward()
    # Further up a good completion or further down a bad one: no gradient. Back towards the old policy: the full one.
    torch.testing.assert_close(5 * logprobs.grad.squeeze(1), torch.tensor([0.0, 1.5, -0.5, 0.0, -1.1]))


@pytest.mark.parametrize("level", LEVELS)
def test_padding_gives_no_gradient(level):
    import torch

    from pytest_rlregress.fixtures.training_step import policy_loss

    logprobs, old_logprobs, advantages, mask = off_policy([1, 4, 2], 0.1, 0)
    policy_loss(logprobs, old_logprobs, advantages, mask, level).backward()
    assert torch.equal(logprobs.grad != 0, mask.bool())


def test_token_logprobs_do_not_depend_on_padding(tiny_qwen):
    import torch

    from pytest_rlregress.fixtures.training_step import token_logprobs

    model = tiny_qwen.model()
    ids = torch.randint(0, model.config.vocab_size, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        alone = token_logprobs(model, ids, torch.ones_like(ids), 11)
        wanted = -torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
        padded = torch.nn.functional.pad(ids, (5, 3))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (5, 3))
        inside = token_logprobs(model, padded, mask, 14)[:, :-3]
    torch.testing.assert_close(alone[0], wanted)
    torch.testing.assert_close(inside, alone)


@pytest.fixture(scope="module")
def grpo_trainer(tiny_qwen, tmp_path_factory):
    """TRL's real trainer on the tiny model: 4 prompts, 4 completions each, of up to 16 tokens."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from pytest_rlregress.fixtures.step_prompts import lower_half

    vocab_size = tiny_qwen.model().config.vocab_size
    rewards = []

    def reward(completion_ids, **_):
        rewards[:] = [lower_half(ids, vocab_size) for ids in completion_ids]
        return list(rewards)

    arguments = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        bf16=False,
        report_to="none",
        gradient_checkpointing=False,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=16,
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        generation_kwargs={"eos_token_id": list(range(0, vocab_size, 16))},
    )
    prompts = ["one", "one two three", "a longer prompt of some more words", "and one"]
    trainer = GRPOTrainer(
        model=tiny_qwen.model(),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tiny_qwen.tokenizer(),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    examples = [{"prompt": prompt} for prompt in prompts for _ in range(4)]
    return trainer, trainer._generate_and_score_completions(examples), rewards


@pytest.mark.needs("trl")
def test_group_advantages_are_trls(grpo_trainer):
    import torch

    from pytest_rlregress.fixtures.training_step import group_advantages

    _, batch, rewards = grpo_trainer
    # TRL divides by std + 1e-4.
    torch.testing.assert_close(group_advantages(torch.tensor(rewards), 4, epsilon=1e-4), batch["advantages"])


@pytest.mark.needs("trl")
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("level", LEVELS)
def test_loss_and_parameter_gradients_are_trls(grpo_trainer, level, clip):
    import torch

    from pytest_rlregress.fixtures.training_step import policy_loss, token_logprobs

    trainer, batch, _ = grpo_trainer
    model, mask = trainer.model, batch["completion_mask"]
    assert mask.sum(dim=1).unique().numel() > 1, "completions of one length only: the mask goes untested"
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention_mask = torch.cat([batch["prompt_mask"], mask], dim=1)

    def ours():
        return token_logprobs(model, ids, attention_mask, mask.shape[1])

    shift = 0.3 * torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))
    batch = {**batch, "old_per_token_logps": ours().detach() + shift}
    trainer.importance_sampling_level = level
    trainer.epsilon_low, trainer.epsilon_high = clip

    wanted = trainer.compute_loss(model, batch)
    loss = policy_loss(ours(), batch["old_per_token_logps"], batch["advantages"], mask, level, *clip)
    torch.testing.assert_close(loss, wanted)
    parameters = dict(model.named_parameters())
    for name, gradient, wished in zip(
        parameters,
        torch.autograd.grad(loss, parameters.values()),
        torch.autograd.grad(wanted, parameters.values()),
        strict=True,
    ):
        torch.testing.assert_close(
            gradient, wished, atol=1e-6, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("with_verl", [pytest.param(True, marks=pytest.mark.needs("verl")), False])
def test_batch_is_laid_out_as_in_verl(with_verl, monkeypatch):
    import sys

    import torch

    from pytest_rlregress.fixtures.step_batch import tensors_of, to_batch
    from pytest_rlregress.fixtures.step_settings import StepSettings
    from pytest_rlregress.fixtures.vllm_engine import Completion

    if not with_verl:
        monkeypatch.setitem(sys.modules, "verl", None)
    completions = [
        Completion([7, 8], [1, 900], [-1.0, -2.0], "stop"),
        Completion([6, 7, 8], [901, 902, 903], [-3.0, -4.0, -5.0], "length"),
    ]
    batch = to_batch(completions, torch.tensor([0.5, 0.0]), torch.tensor([0.7, -0.7]), StepSettings(response_length=3))
    assert type(batch).__name__ == ("DataProto" if with_verl else "TensorDict")
    tensors = tensors_of(batch)
    torch.testing.assert_close(tensors.pop("advantages"), torch.tensor([0.7, -0.7]))
    assert {key: value.tolist() for key, value in tensors.items()} == {
        "prompts": [[0, 7, 8], [6, 7, 8]],
        "responses": [[1, 900, 0], [901, 902, 903]],
        "input_ids": [[0, 7, 8, 1, 900, 0], [6, 7, 8, 901, 902, 903]],
        "attention_mask": [[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
        "position_ids": [[0, 0, 1, 2, 3, 3], [0, 1, 2, 3, 4, 5]],
        "response_mask": [[1, 1, 0], [1, 1, 1]],
        "rollout_log_probs": [[-1.0, -2.0, 0.0], [-3.0, -4.0, -5.0]],
        "rewards": [0.5, 0.0],
    }
