"""Broken remedies of nan-reward-poisons-group, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import group_advantages
from pytest_rlregress.scenarios.losses.mutants import advantages_without

SCENARIO = "pytest_rlregress.scenarios.losses.nan_reward_poisons_group.test_nan_reward_poisons_group"


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
