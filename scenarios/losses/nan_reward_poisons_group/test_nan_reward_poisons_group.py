"""One reward that is NaN, a verifier's error say, makes every advantage of its group NaN."""

from __future__ import annotations

import itertools

import pytest

from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers

ODD = pytest.mark.parametrize("odd", ["nan", "inf", "-inf"])


def broken_reward():
    """What the reward function gives for an answer that it cannot read."""
    return float("nan")


@pytest.mark.reproduces("nan-reward-poisons-group")
@pytest.mark.parametrize("normalise", [True, False], ids=["grpo", "dr-grpo"])
def test_one_reward(normalise):
    import numpy as np
    import torch

    rewards, mask = torch.tensor([[0.0, broken_reward()], [0.0, 1.0], [0.0, 0.0]]), torch.ones(3, 2)
    index = np.array(["a"] * 3, dtype=object)
    advantages, _ = trainers.core_algos().compute_grpo_outcome_advantage(
        rewards, mask, index, norm_adv_by_std_in_grpo=normalise
    )
    odd = int((~torch.isfinite(advantages[1:, 0])).sum())
    if odd:
        silent(f"1 reward is not a number, nor are the advantages of {odd} other trajectories")


def pairs(batch, normalise):
    """The closed form for groups of two neighbouring rows: half of the difference, over |difference| / sqrt 2."""
    scores = batch.rewards.double().sum(-1).reshape(-1, 2)
    half = (scores - scores.flip(-1)) / 2
    if normalise:
        half = half / (half.abs() * 2**0.5 + 1e-6)
    return half.flatten()[:, None] * batch.mask


@pytest.mark.guards("nan-reward-poisons-group")
@pytest.mark.parametrize("normalise", [True, False], ids=["grpo", "dr-grpo"])
def test_advantages_of_finite_rewards(advantages_of, subject, normalise):
    def function(batch):
        rewards = (batch.rewards * batch.mask).nan_to_num(0, 0, 0).sum(-1)
        advantages = subject(rewards, batch.mask, batch.groups, normalise=normalise)
        assert (advantages.shape, advantages.dtype) == (batch.mask.shape, rewards.dtype)
        assert not advantages[batch.mask == 0].any()
        return advantages

    advantages_of(function, lambda batch: pairs(batch, normalise)).unchanged_by()


@pytest.mark.guards("nan-reward-poisons-group")
@ODD
@pytest.mark.parametrize("normalise", [True, False], ids=["grpo", "dr-grpo"])
def test_as_if_it_were_not_there(subject, odd, normalise):
    import torch

    rewards, mask = torch.tensor([1.0, float(odd), 0.25, 0.0, 0.5, 1.0]), torch.ones(6, 2, dtype=torch.int64)
    groups = ["a", "a", "a", "b", "b", "a"]
    kept = [0, 2, 3, 4, 5]
    found = subject(rewards, mask, groups, normalise=normalise)
    wanted = subject(rewards[kept], mask[kept], [groups[row] for row in kept], normalise=normalise)
    assert found[kept].equal(wanted)
    assert wanted.any(dim=1).all()
    assert found[1].tolist() == [0, 0]
    assert rewards[1].isfinite().item() is False, "the rewards given were changed"


@pytest.mark.guards("nan-reward-poisons-group")
@ODD
def test_group_without_two_rewards(subject, odd):
    """There is nothing to compare with."""
    import torch

    rewards = torch.tensor([float(odd), float(odd), 5.0, float(odd)])
    advantages = subject(rewards, torch.ones(4, 3, dtype=torch.int64), ["a", "a", "b", "b"])
    assert advantages.tolist() == [[0] * 3] * 4


@pytest.mark.guards("nan-reward-poisons-group")
def test_equal_rewards(subject):
    """Their mean is not always one of them: over a deviation of 1e-6 the rest of it would be a step."""
    import torch

    for reward, size, dtype in itertools.product((0.1, 0.35, 0.7, 1 / 3), range(2, 12), (torch.float32, torch.float64)):
        rewards = torch.full((size,), reward, dtype=dtype)
        advantages = subject(rewards, torch.ones(size, 1, dtype=torch.int64), ["a"] * size)
        assert not advantages.any(), f"{size} rewards of {reward} have advantages of {advantages[:, 0].tolist()}"


@pytest.mark.guards("nan-reward-poisons-group")
def test_each_group_by_itself(subject):
    """Also behind a group of one and a group of equal rewards; two that are equal are not all."""
    import statistics

    import torch

    rewards = {"one": [5.0], "equal": [1.0, 1.0], "first two": [0.0, 0.0, 3.0], "last two": [4.0, 1.0, 1.0]}
    groups = [group for group, own in rewards.items() for _ in own]
    given = torch.tensor([reward for own in rewards.values() for reward in own], dtype=torch.float64)
    found = subject(given, torch.ones(len(groups), 2, dtype=torch.int64), groups)[:, 0].tolist()
    wanted = [0.0] * 3
    for own in (rewards["first two"], rewards["last two"]):
        wanted += [(reward - statistics.mean(own)) / (statistics.stdev(own) + 1e-6) for reward in own]
    assert found == pytest.approx(wanted, rel=8 * torch.finfo(torch.float64).eps, abs=0)
