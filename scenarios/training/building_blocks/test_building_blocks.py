"""verl's advantages, losses, means and divergences are the miniature step's, or differ as they must."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.scenarios.training.building_blocks.blocks import CLOSE, check_loss, gradient, off_policy, ours
from pytest_rlregress.scenarios.training.building_blocks.verl_blocks import verls
from pytest_rlregress.stack import InterfaceMissing, versions

pytestmark = pytest.mark.guards("building-blocks")


@pytest.mark.needs("verl")
def test_verl_advantages():
    import numpy as np
    import torch

    from pytest_rlregress.fixtures import training_step

    rewards = torch.rand(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rewards[4:8] = 0.5  # a group with nothing to tell apart has no advantage
    advantages, _ = trainers.core_algos().compute_grpo_outcome_advantage(
        rewards.unsqueeze(1).clone(), torch.ones(16, 1), np.arange(16) // 4
    )
    with act():
        torch.testing.assert_close(advantages.squeeze(1), training_step.group_advantages(rewards, 4), **CLOSE)


@pytest.mark.needs("verl")
@pytest.mark.parametrize("rows", [None, 1, 4], ids=["whole", "each-row", "four-and-two"])
@pytest.mark.parametrize(
    ("name", "mode", "level", "mean"),
    [
        ("vanilla", "seq-mean-token-mean", "token", "sequence-mean"),
        ("gspo", "seq-mean-token-mean", "sequence", "sequence-mean"),
        ("vanilla", "token-mean", "token", "token-mean"),
        ("vanilla", "seq-mean-token-sum", "token", "sum"),
        ("vanilla", "seq-mean-token-sum-norm", "token", "constant"),
    ],
)
def test_verl_loss(name, mode, level, mean, rows):
    """By ``ppo_loss`` the whole batch's, however it is cut into micro batches and ranks."""
    batch = off_policy(0.25)
    theirs = verls(batch, rows, name, mode, loss_scale_factor=20)
    with act():
        check_loss(theirs, batch, level, mean, longest=20)


@pytest.mark.needs("verl")
def test_verl_weights_tokens_for_the_engine():
    """Rollout correction: each token's loss times the weight that the engine's log-probability gave it."""
    import torch

    batch = off_policy(0.25)
    weights = 2 * torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = gradient(verls(batch, 4, weights=weights), batch)
    with act():
        torch.testing.assert_close(found, gradient(ours(batch), batch) * weights, **CLOSE)


@pytest.mark.needs("verl")
def test_verl_adds_the_divergence():
    import torch

    batch = off_policy(0.25)
    settings = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"}
    added = verls(batch, 4, **settings) - verls(batch, 4)
    apart = batch.ref_log_probs - batch.log_probs
    expected = 0.1 * ((apart.exp() - apart - 1) * batch.mask).sum(dim=1) / batch.mask.sum(dim=1)
    with act():
        torch.testing.assert_close(added.detach(), expected.mean().detach(), **CLOSE)
        torch.testing.assert_close(gradient(added, batch), gradient(expected.mean(), batch), **CLOSE)


@pytest.mark.needs("verl")
def test_verl_stops_what_got_three_times_likelier_and_is_worse():
    """The second bound of a dual clip, which GRPO's paper doesn't have; all other tokens are as ours."""
    import torch

    batch = off_policy(1.5)
    ratio = (batch.log_probs - batch.old_log_probs).exp()
    stopped = (ratio > 3) & (batch.advantages < 0) & batch.mask.bool()
    mine, theirs = gradient(ours(batch), batch), gradient(verls(batch), batch)
    with act():
        assert stopped.any(), "no token is beyond the bound"
        assert mine[stopped].all(), "a token beyond the bound has no gradient to lose"
        torch.testing.assert_close(theirs, mine.masked_fill(stopped, 0), **CLOSE)


@pytest.mark.needs("verl")
@pytest.mark.parametrize("name", ["low_var_kl", "low_var_kl+"])
def test_verl_divergence(name):
    """Of k3 verl takes 10 at most; "+" gives it the gradient of k2, as the remedy has it."""
    import torch

    from pytest_rlregress.remedies.losses import kl_term

    batch = off_policy(0.25)
    far = batch.ref_log_probs + torch.linspace(0, 4, batch.mask.numel()).view_as(batch.mask)
    expected = kl_term(batch.log_probs, far)
    try:
        found = trainers.core_algos().kl_penalty(batch.log_probs, far, name)
    except NotImplementedError:  # verl 0.7 describes "+", and then knows no such name
        raise InterfaceMissing(f"needs kl_penalty(…, {name!r}), which verl {versions()['verl']} doesn't have") from None
    with act():
        assert expected.max() > 10 > expected.min(), "nothing is on both sides of the bound"
    torch.testing.assert_close(found.detach(), expected.detach().clamp(max=10), **CLOSE)
    slope = gradient(found.sum(), batch)
    wanted = gradient(expected.sum(), batch) if name.endswith("+") else 1 - (far - batch.log_probs).exp()
    bound = (expected > 10) if not name.endswith("+") else torch.zeros_like(batch.mask, dtype=torch.bool)
    torch.testing.assert_close(slope, wanted.detach().masked_fill(bound, 0), **CLOSE)
