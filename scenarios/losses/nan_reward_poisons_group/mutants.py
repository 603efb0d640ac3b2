from mutants import broken, replaces
from pytest_rlregress.remedies.losses import group_advantages


@broken(only="test_as_if")
def counted_as_0(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return group_advantages(rewards.nan_to_num(0, 0, 0), response_mask, groups, normalise, epsilon)


@broken(only="test_advantages_of")
def deviation_of_a_population(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    advantages = group_advantages(rewards, response_mask, groups, normalise, epsilon)
    return advantages * 2**0.5 if normalise else advantages


replaces("absent", ".test_nan_reward_poisons_group.broken_reward")(lambda: 0.5)


@replaces("changed", "verl.trainer.ppo.core_algos.compute_grpo_outcome_advantage")
def verl_refuses(rewards, mask, index, **options):
    raise ValueError("rewards are not finite")
