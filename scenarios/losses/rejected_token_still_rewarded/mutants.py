from mutants import broken, replaces
from pytest_rlregress.remedies.losses import group_advantages
from pytest_rlregress.stack.lazy import torch


@broken(only="test_as_if")
def mask_not_looked_at(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    every = torch.ones_like(response_mask)
    return group_advantages(rewards, every, groups, normalise, epsilon) * response_mask.bool()


@broken(only="test_last_one")
def last_one_raw(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return rewards[:, None] * response_mask


@replaces("absent", "verl.trainer.ppo.core_algos.compute_grpo_outcome_advantage")
def verl_leaves_them_out(token_level_rewards, response_mask, index, **options):
    advantages = group_advantages(token_level_rewards.sum(-1), response_mask, list(index), **options)
    return advantages, advantages


@replaces("changed", "verl.trainer.ppo.core_algos.compute_grpo_outcome_advantage")
def verl_takes_no_empty_response(rewards, mask, index, **options):
    raise ValueError("a response is empty")
