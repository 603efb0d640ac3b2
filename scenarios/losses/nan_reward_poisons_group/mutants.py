"""Broken remedies of nan-reward-poisons-group, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import group_advantages

SCENARIO = "pytest_rlregress.scenarios.losses.nan_reward_poisons_group.test_nan_reward_poisons_group"


def advantages_without(*, finite=True, trained=True, equal=True):
    """``group_advantages`` by another hand, with some of what it looks at left out."""

    def advantages(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
        import torch

        if not len(rewards) == len(response_mask) == len(groups):
            raise ValueError(f"{len(rewards)} rewards, {len(response_mask)} rows, {len(groups)} groups")
        found = torch.zeros_like(rewards)
        for group in dict.fromkeys(groups):
            rows = [
                row
                for row, one in enumerate(groups)
                if one == group
                and not (finite and not torch.isfinite(rewards[row]))
                and not (trained and not response_mask[row].any())
            ]
            own = rewards[rows]
            if len(rows) < 2 or (equal and (own == own[0]).all()):
                continue
            deviation = own.double().std() + epsilon if normalise else 1
            mean = own.double().mean() if equal else own.sum() / len(own)
            found[rows] = ((own - mean) / deviation).to(rewards.dtype)
        return found[:, None] * response_mask.bool()

    return advantages


@broken(only="test_as_if")
def taken_as_it_is(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return advantages_without(finite=False)(rewards, response_mask, groups, normalise, epsilon)


@broken(only="test_advantages_of")
def deviation_of_a_population(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    advantages = group_advantages(rewards, response_mask, groups, normalise, epsilon)
    return advantages * 2**0.5 if normalise else advantages


@mutant("absent")
def verifier_gives_a_number(monkeypatch):
    monkeypatch.setattr(f"{SCENARIO}.broken_reward", lambda: 0.5)


@mutant("changed")
def verl_refuses(monkeypatch):
    from verl.trainer.ppo import core_algos

    def refuse(rewards, mask, index, **options):
        raise ValueError("rewards are not finite")

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", refuse)
