"""Broken remedies of reward-on-masked-token, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.losses import place_scores


@broken(only="test_score_is")
def on_the_last_token(scores, response_mask):
    import torch

    return torch.nn.functional.pad(scores[:, None], (response_mask.shape[1] - 1, 0))


@broken(only="test_no_score")
def on_the_first_trained_token(scores, response_mask):
    return place_scores(scores, response_mask.flip(-1)).flip(-1)


@mutant("absent", only="test_score_on")
def recursion_takes_every_reward(monkeypatch):
    from verl.trainer.ppo import core_algos

    def moved(function):
        def fixed(token_level_rewards, *args, **kwargs):
            mask = args[-3] if len(args) > 1 else args[0]
            return function(place_scores(token_level_rewards.sum(-1), mask), *args, **kwargs)

        return fixed

    for name in ("compute_gae_advantage_return", "compute_reinforce_plus_plus_outcome_advantage"):
        monkeypatch.setattr(core_algos, name, moved(getattr(core_algos, name)))


@mutant("changed", only="test_score_on")
def recursion_fails_otherwise(monkeypatch):
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos.verl_F, "masked_whiten", fails)
