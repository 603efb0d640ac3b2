"""Broken remedies of rejected-token-still-rewarded, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import group_advantages
from pytest_rlregress.scenarios.losses.mutants import advantages_without


@broken(only="test_as_if")
def mask_not_looked_at(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return advantages_without(trained=False)(rewards, response_mask, groups, normalise, epsilon)


@broken(only="test_rejected_all")
def last_one_raw(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return rewards[:, None] * response_mask


@mutant("absent")
def verl_leaves_them_out(monkeypatch):
    from verl.trainer.ppo import core_algos

    def fixed(token_level_rewards, response_mask, index, **options):
        advantages = group_advantages(token_level_rewards.sum(-1), response_mask, list(index), **options)
        return advantages, advantages

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", fixed)


@mutant("changed")
def verl_takes_no_empty_response(monkeypatch):
    from verl.trainer.ppo import core_algos

    def refuse(rewards, mask, index, **options):
        raise ValueError("a response is empty")

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", refuse)
