"""Mutants of scenarios/losses: of its rewards and advantages."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import check_groups, group_advantages, place_scores

SCENARIOS = "pytest_rlregress.scenarios.losses"


def fails(*args, **kwargs):
    raise TypeError("this stack wants it said in another way")


@broken("reward-on-masked-token", only="test_score_is")
def on_the_last_token(scores, response_mask):
    import torch

    return torch.nn.functional.pad(scores[:, None], (response_mask.shape[1] - 1, 0))


@broken("reward-on-masked-token", only="test_score_is")
def by_the_number_of_trained_tokens(scores, response_mask):
    """Right where no tool comes between."""
    import torch

    last = response_mask.long().sum(-1) - 1
    return torch.nn.functional.one_hot(last % response_mask.shape[1], response_mask.shape[1]) * scores[:, None]


@broken("reward-on-masked-token", only="test_score_is")
def on_every_trained_token(scores, response_mask):
    return scores[:, None] * response_mask


@broken("reward-on-masked-token", only="test_no_score")
def on_the_first_trained_token(scores, response_mask):
    return place_scores(scores, response_mask.flip(-1)).flip(-1)


@broken("reward-on-masked-token", only="test_conversation")
def signs_lost(scores, response_mask):
    return place_scores(scores.abs(), response_mask)


@mutant("reward-on-masked-token", "absent", only="test_score_on")
def recursion_takes_every_reward(monkeypatch):
    from verl.trainer.ppo import core_algos

    def moved(function):
        def fixed(token_level_rewards, *args, **kwargs):
            mask = args[-3] if len(args) > 1 else args[0]
            return function(place_scores(token_level_rewards.sum(-1), mask), *args, **kwargs)

        return fixed

    for name in ("compute_gae_advantage_return", "compute_reinforce_plus_plus_outcome_advantage"):
        monkeypatch.setattr(core_algos, name, moved(getattr(core_algos, name)))


@mutant("reward-on-masked-token", "changed", only="test_score_on")
def recursion_fails_otherwise(monkeypatch):
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos.verl_F, "masked_whiten", fails)


@broken("singleton-group-raw-reward", only="test_other_groups")
def unchecked(groups, size):
    from pytest_rlregress.remedies.batch import object_column

    return object_column(groups)


@broken("singleton-group-raw-reward", only="test_other_groups")
def only_the_number_of_groups(groups, size):
    ids = unchecked(groups, size)
    if len(set(ids.tolist())) * size != len(ids):
        raise ValueError(f"groups of another size than {size}, 1 or 2 or 3 or 4 of {size}")
    return ids


@broken("singleton-group-raw-reward", only="test_other_groups")
def larger_groups_taken(groups, size):
    from collections import Counter

    for group, rows in Counter(groups).items():
        if rows < size:
            raise ValueError(f"group {group!r} has {rows} of {size}")
    return unchecked(groups, size)


@broken("singleton-group-raw-reward", only="test_groups_of")
def sorted_by_group(groups, size):
    return check_groups(sorted(groups), size)


@broken("singleton-group-raw-reward", only="test_groups_of")
def neighbours_only(groups, size):
    ids = check_groups(groups, size)
    if any(len(set(ids[start : start + size].tolist())) > 1 for start in range(0, len(ids), size)):
        raise ValueError("the rows of a prompt are not together")
    return ids


@broken("singleton-group-raw-reward", only="test_groups_of")
def ids_as_text(groups, size):
    return check_groups(map(str, groups), size)


@broken("singleton-group-raw-reward", only="test_group_of_one")
def groups_of_one_taken(groups, size):
    return check_groups(groups, size) if size > 1 else unchecked(groups, size)


@broken("singleton-group-raw-reward", only="test_which_group")
def group_not_told(groups, size):
    try:
        return check_groups(groups, size)
    except ValueError:
        raise ValueError(f"a group has not {size} responses") from None


@mutant("singleton-group-raw-reward", "absent")
def id_of_the_prompt(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIOS}.test_singleton_group_raw_reward.group_ids", lambda trajectories: ["a"] * trajectories
    )


@mutant("singleton-group-raw-reward", "changed")
def groups_of_one_refused(monkeypatch):
    """By verl itself, in words of its own."""
    from verl.trainer.ppo import core_algos

    def refuse(rewards, mask, index, **options):
        raise ValueError("group of one")

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", refuse)


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


@broken("nan-reward-poisons-group", only="test_as_if")
def taken_as_it_is(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return advantages_without(finite=False)(rewards, response_mask, groups, normalise, epsilon)


@broken("nan-reward-poisons-group", only="test_as_if")
def scored_as_wrong(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return group_advantages(rewards.nan_to_num(0, 0, 0), response_mask, groups, normalise, epsilon)


@broken("nan-reward-poisons-group", only="test_as_if")
def whole_group_dropped(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    odd = {group for group, reward in zip(groups, rewards.tolist(), strict=True) if reward - reward != 0}
    advantages = group_advantages(rewards, response_mask, groups, normalise, epsilon)
    advantages[[group in odd for group in groups]] = 0
    return advantages


@broken("nan-reward-poisons-group", only="test_as_if")
def nan_alone_left_out(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return group_advantages(rewards.nan_to_num(float("nan"), 1e6, -1e6), response_mask, groups, normalise, epsilon)


@broken("nan-reward-poisons-group", only="test_as_if")
def rewards_changed(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    advantages = group_advantages(rewards, response_mask, groups, normalise, epsilon)
    rewards.nan_to_num_(0, 0, 0)
    return advantages


@broken("nan-reward-poisons-group", only="test_advantages_of")
def deviation_of_a_population(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    advantages = group_advantages(rewards, response_mask, groups, normalise, epsilon)
    return advantages * 2**0.5 if normalise else advantages


@broken("nan-reward-poisons-group", only="test_advantages_of")
def advantages_under_the_mask(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return group_advantages(rewards, response_mask * 0 + 1, groups, normalise, epsilon)


@broken("nan-reward-poisons-group", only="test_group_without")
def single_reward_kept(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    advantages = group_advantages(rewards, response_mask, groups, normalise, epsilon)
    advantages[2] = rewards[2]
    return advantages


@broken("nan-reward-poisons-group", only="test_equal")
def mean_in_float32(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return advantages_without(equal=False)(rewards, response_mask, groups, normalise, epsilon)


@mutant("nan-reward-poisons-group", "absent")
def verifier_gives_a_number(monkeypatch):
    monkeypatch.setattr(f"{SCENARIOS}.test_nan_reward_poisons_group.broken_reward", lambda: 0.5)


@mutant("nan-reward-poisons-group", "changed")
def verl_refuses(monkeypatch):
    from verl.trainer.ppo import core_algos

    def refuse(rewards, mask, index, **options):
        raise ValueError("rewards are not finite")

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", refuse)


@broken("rejected-token-still-rewarded", only="test_as_if")
def mask_not_looked_at(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return advantages_without(trained=False)(rewards, response_mask, groups, normalise, epsilon)


@broken("rejected-token-still-rewarded", only="test_as_if")
def reward_masked_alone(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    """The rejected row still counts, with a reward of 0."""
    masked = rewards * response_mask.bool().any(-1)
    return advantages_without(trained=False)(masked, response_mask, groups, normalise, epsilon)


@broken("rejected-token-still-rewarded", only="test_as_if")
def partly_masked_left_out(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    whole = response_mask * response_mask.bool().all(-1, keepdim=True)
    return group_advantages(rewards, whole, groups, normalise, epsilon)


@broken("rejected-token-still-rewarded", only="test_rejected_all")
def last_one_raw(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return rewards[:, None] * response_mask


@broken("rejected-token-still-rewarded", only="test_other_numbers")
def cut_to_the_shorter(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    rows = min(len(rewards), len(response_mask), len(groups))
    return group_advantages(rewards[:rows], response_mask[:rows], groups[:rows])


@mutant("rejected-token-still-rewarded", "absent")
def verl_leaves_them_out(monkeypatch):
    from verl.trainer.ppo import core_algos

    def fixed(token_level_rewards, response_mask, index, **options):
        advantages = group_advantages(token_level_rewards.sum(-1), response_mask, list(index), **options)
        return advantages, advantages

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", fixed)


@mutant("rejected-token-still-rewarded", "changed")
def verl_takes_no_empty_response(monkeypatch):
    from verl.trainer.ppo import core_algos

    def refuse(rewards, mask, index, **options):
        raise ValueError("a response is empty")

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", refuse)
