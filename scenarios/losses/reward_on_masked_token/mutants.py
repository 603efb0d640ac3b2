from mutants import broken, fails, replaces
from pytest_rlregress.remedies.losses import place_scores
from pytest_rlregress.stack.lazy import torch


@broken(only="test_score_reaches")
def on_the_last_token(scores, response_mask):
    return torch.nn.functional.pad(scores[:, None], (response_mask.shape[1] - 1, 0))


@broken(only="test_score_is")
def on_the_first_trained_token(scores, response_mask):
    return place_scores(scores, response_mask.flip(-1)).flip(-1)


@replaces("absent", "verl.trainer.ppo.core_algos.compute_gae_advantage_return", only="test_score_on")
def recursion_takes_every_reward(original, rewards, values, mask, *args):
    return original(place_scores(rewards.sum(-1), mask), values, mask, *args)


replaces("changed", "verl.trainer.ppo.core_algos.verl_F.masked_whiten", only="test_score_on")(fails)
