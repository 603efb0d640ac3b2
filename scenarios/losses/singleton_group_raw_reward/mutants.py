from mutants import broken, replaces
from pytest_rlregress.remedies.losses import check_groups


@broken(only="test_rejects_groups")
def unchecked(groups, size):
    from pytest_rlregress.remedies.batch import object_column

    return object_column(groups)


@broken(only="test_groups_of")
def sorted_by_group(groups, size):
    return check_groups(sorted(groups), size)


replaces("absent", ".test_singleton_group_raw_reward.group_ids")(lambda trajectories: ["a"] * trajectories)


@replaces("changed", "verl.trainer.ppo.core_algos.compute_grpo_outcome_advantage")
def groups_of_one_refused(rewards, mask, index, **options):
    """By verl itself, in words of its own."""
    raise ValueError("group of one")
