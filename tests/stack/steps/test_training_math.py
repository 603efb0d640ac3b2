"""The step's loss, advantages and batch; scenarios/training/building_blocks holds them against verl's and TRL's."""

from __future__ import annotations

import heapq
import random
import statistics

import pytest

from pytest_rlregress.hardware.profiles import load_profiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.isolated(group="training-math", timeout=300),
    pytest.mark.needs("torch", "transformers"),
]

LEVELS = ["token", "sequence"]


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
