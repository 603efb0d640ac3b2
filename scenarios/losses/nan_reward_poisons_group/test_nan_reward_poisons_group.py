import itertools

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack.lazy import np, torch

ODD = pytest.mark.parametrize("odd", ["nan", "inf", "-inf"])


def broken_reward():
    """What the reward function gives for an answer that it cannot read."""
    return float("nan")


@pytest.mark.reproduces("nan-reward-poisons-group")
@pytest.mark.parametrize("normalise", [True, False], ids=["grpo", "dr-grpo"])
def test_one_reward(normalise):
    rewards, mask = torch.tensor([[0.0, broken_reward()], [0.0, 1.0], [0.0, 0.0]]), torch.ones(3, 2)
    index = np.array(["a"] * 3, dtype=object)
    with act():
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

    with act():
        advantages_of(function, lambda batch: pairs(batch, normalise)).unchanged_by()


@pytest.mark.guards("nan-reward-poisons-group")
@ODD
@pytest.mark.parametrize("normalise", [True, False], ids=["grpo", "dr-grpo"])
def test_as_if_it_were_not_there(subject, odd, normalise):
    rewards, mask = torch.tensor([1.0, float(odd), 0.25, 0.0, 0.5, 1.0]), torch.ones(6, 2, dtype=torch.int64)
    groups = ["a", "a", "a", "b", "b", "a"]
    kept = [0, 2, 3, 4, 5]
    with act():
        found = subject(rewards, mask, groups, normalise=normalise)
    wanted = subject(rewards[kept], mask[kept], [groups[row] for row in kept], normalise=normalise)
    assert found[kept].equal(wanted)
    assert wanted.any(dim=1).all()
    assert found[1].tolist() == [0, 0]
    assert rewards[1].isfinite().item() is False, "the rewards given were changed"


@pytest.mark.guards("nan-reward-poisons-group")
@ODD
def test_group_with_one_reward_has_no_advantage(subject, odd):
    """There is nothing to compare with."""
    rewards = torch.tensor([float(odd), float(odd), 5.0, float(odd)])
    with act():
        advantages = subject(rewards, torch.ones(4, 3, dtype=torch.int64), ["a", "a", "b", "b"])
    assert advantages.tolist() == [[0] * 3] * 4


@pytest.mark.guards("nan-reward-poisons-group")
def test_equal_rewards_have_no_advantage(subject):
    """Their mean is not always one of them: over a deviation of 1e-6 the rest of it would be a step."""
    with act():
        for reward, size, dtype in itertools.product(
            (0.1, 0.35, 0.7, 1 / 3), range(2, 12), (torch.float32, torch.float64)
        ):
            rewards = torch.full((size,), reward, dtype=dtype)
            advantages = subject(rewards, torch.ones(size, 1, dtype=torch.int64), ["a"] * size)
            assert not advantages.any(), f"{size} rewards of {reward} have advantages of {advantages[:, 0].tolist()}"
