"""Mutants of scenarios/losses."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import (
    check_groups,
    constant_length_mean,
    disable_dropout,
    group_advantages,
    kl_term,
    place_scores,
    token_mean,
)

SCENARIOS = "pytest_rlregress.scenarios.losses"


def fails(*args, **kwargs):
    raise TypeError("this stack wants it said in another way")


@broken("token-mean-micro-batch", only="test_every_token")
def mean_of_the_micro_batch(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() / mask.sum() / 2


@broken("token-mean-micro-batch", only="test_every_token")
def padding_counted(losses, mask, batch_tokens, ranks=1):
    return token_mean(losses, mask, batch_tokens, ranks) * mask.shape[1] / 9


@broken("token-mean-micro-batch", only="test_every_token")
def mask_forgotten(losses, mask, batch_tokens, ranks=1):
    return losses.sum() * ranks / batch_tokens


@broken("token-mean-micro-batch", only="test_mean_over_ranks")
def ranks_forgotten(losses, mask, batch_tokens, ranks=1):
    return token_mean(losses, mask, batch_tokens)


@broken("token-mean-micro-batch", only="test_nan")
def mask_multiplied(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() * ranks / batch_tokens


@broken("token-mean-micro-batch", only="test_nan")
def summed_in_float64(losses, mask, batch_tokens, ranks=1):
    return token_mean(losses.double(), mask, batch_tokens, ranks)


@broken("token-mean-micro-batch", only="test_impossible")
def any_number_taken(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() * ranks / max(batch_tokens, 1)


@broken("token-mean-micro-batch", only="test_micro_batch_without")
def empty_micro_batches_refused(losses, mask, batch_tokens, ranks=1):
    if not mask.any():
        raise ValueError("no trained token")
    return token_mean(losses, mask, batch_tokens, ranks)


@mutant("token-mean-micro-batch", "absent", only="test_verl")
def engine_tells_the_batch(monkeypatch):
    """As verl's engines do; it takes the mean over micro batches for one over ranks."""
    told = f"{SCENARIOS}.test_token_mean_micro_batch.told_nothing"
    monkeypatch.setattr(told, lambda batch: {"batch_num_tokens": batch.batch_tokens, "dp_size": batch.parts})


@mutant("token-mean-micro-batch", "changed", only="test_verl")
def verl_averages_sequences(monkeypatch):
    from verl.trainer.ppo import core_algos

    agg_loss = core_algos.agg_loss
    monkeypatch.setattr(
        core_algos,
        "agg_loss",
        lambda loss_mat, loss_mask, loss_agg_mode: agg_loss(loss_mat, loss_mask, "seq-mean-token-mean"),
    )


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


@broken("reward-on-masked-token", only="test_score_is")
def dtype_of_the_mask(scores, response_mask):
    return place_scores(scores, response_mask).float()


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

    whiten = "masked_whiten"
    monkeypatch.setattr(core_algos.verl_F, whiten, fails)


@broken("kl-in-loss-gradient", only="test_gradient_and_value")
def k3_differentiated(log_probs, ref_log_probs, old_log_probs=None):
    difference = ref_log_probs - log_probs
    return difference.exp() - difference - 1


@broken("kl-in-loss-gradient", only="test_gradient_and_value")
def k2_for_the_value_too(log_probs, ref_log_probs, old_log_probs=None):
    return (log_probs - ref_log_probs).square() / 2


@broken("kl-in-loss-gradient", only="test_gradient_and_value")
def half_of_the_gradient(log_probs, ref_log_probs, old_log_probs=None):
    term = kl_term(log_probs, ref_log_probs, old_log_probs)
    return (term + term.detach()) / 2


@broken("kl-in-loss-gradient", only="value_of_the_divergence[sampler_forgotten-other]")
def sampler_forgotten(log_probs, ref_log_probs, old_log_probs=None):
    return kl_term(log_probs, ref_log_probs)


@broken("kl-in-loss-gradient", only="value_of_the_divergence[k1_for_the_value-policy]")
def k1_for_the_value(log_probs, ref_log_probs, old_log_probs=None):
    term = kl_term(log_probs, ref_log_probs, old_log_probs)
    return term - term.detach() + (log_probs - ref_log_probs).detach()


@broken("kl-in-loss-gradient", only="test_only_the_policy")
def reference_trained(log_probs, ref_log_probs, old_log_probs=None):
    return kl_term(log_probs, ref_log_probs, old_log_probs) + 0.1 * (ref_log_probs - ref_log_probs.detach())


@broken("kl-in-loss-gradient", only="test_sampled_by")
def sampler_needed(log_probs, ref_log_probs, old_log_probs=None):
    return kl_term(log_probs, ref_log_probs, old_log_probs if old_log_probs is not None else ref_log_probs)


@mutant("kl-in-loss-gradient", "absent", only="test_verl")
def verl_binds_k2_to_it(monkeypatch):
    """As its estimators with a plus do."""
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, "kl_penalty", lambda logprob, ref_logprob, kind: kl_term(logprob, ref_logprob))


@mutant("kl-in-loss-gradient", "changed", only="test_verl")
def verl_knows_no_such_estimator(monkeypatch):
    from verl.trainer.ppo import core_algos

    monkeypatch.setattr(core_algos, "kl_penalty", fails)


@broken("drgrpo-divisor-follows-padding", only="test_constant")
def width_of_the_batch(losses, mask, batch_sequences, max_tokens, ranks=1):
    return constant_length_mean(losses, mask, batch_sequences, mask.shape[1], ranks)


@broken("drgrpo-divisor-follows-padding", only="test_constant")
def rows_of_the_micro_batch(losses, mask, batch_sequences, max_tokens, ranks=1):
    return constant_length_mean(losses, mask, len(mask), max_tokens, ranks)


@broken("drgrpo-divisor-follows-padding", only="test_constant")
def sum_for_mean(losses, mask, batch_sequences, max_tokens, ranks=1):
    return batch_sequences * constant_length_mean(losses, mask, batch_sequences, max_tokens, ranks)


@broken("drgrpo-divisor-follows-padding", only="test_mean_over_ranks")
def ranks_overlooked(losses, mask, batch_sequences, max_tokens, ranks=1):
    return constant_length_mean(losses, mask, batch_sequences, max_tokens)


@broken("drgrpo-divisor-follows-padding", only="test_nan")
def mask_times_losses(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


@broken("drgrpo-divisor-follows-padding", only="test_response_longer")
def any_length_taken(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


@broken("drgrpo-divisor-follows-padding", only="test_response_longer")
def width_refused(losses, mask, batch_sequences, max_tokens, ranks=1):
    if mask.shape[1] > max_tokens:
        raise ValueError(f"a row of {mask.shape[1]} tokens is longer than {max_tokens}")
    return constant_length_mean(losses, mask, batch_sequences, max_tokens, ranks)


@broken("drgrpo-divisor-follows-padding", only="test_more_rows")
def any_number_of_rows_taken(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


@mutant("drgrpo-divisor-follows-padding", "absent")
def configured_length(monkeypatch):
    """As with verl's loss_scale_factor set to the width that the gradient is compared with."""
    told = f"{SCENARIOS}.test_drgrpo_divisor_follows_padding.told_no_length"
    monkeypatch.setattr(told, lambda batch: {"loss_scale_factor": 7})


@mutant("drgrpo-divisor-follows-padding", "changed")
def no_such_mode(monkeypatch):
    from verl.trainer.ppo import core_algos

    agg_loss = core_algos.agg_loss
    monkeypatch.setattr(core_algos, "agg_loss", lambda losses, mask, mode: agg_loss(losses, mask, "no such mode"))


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
def always_normalised(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return group_advantages(rewards, response_mask, groups, epsilon=epsilon)


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


@broken("rejected-token-still-rewarded", only="test_as_verl")
def without_division(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    return group_advantages(rewards, response_mask, groups, normalise=False)


@broken("rejected-token-still-rewarded", only="test_other_numbers")
def cut_to_the_shorter(rewards, response_mask, groups, normalise=True, epsilon=1e-6):
    rows = min(len(rewards), len(response_mask), len(groups))
    return group_advantages(rewards[:rows], response_mask[:rows], groups[:rows])


@mutant("rejected-token-still-rewarded", "absent")
def verl_leaves_them_out(monkeypatch):
    from verl.trainer.ppo import core_algos

    def fixed(token_level_rewards, response_mask, index, **options):
        advantages = group_advantages(token_level_rewards.sum(-1), response_mask, list(index))
        return advantages, advantages

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", fixed)


@mutant("rejected-token-still-rewarded", "changed")
def verl_takes_no_empty_response(monkeypatch):
    from verl.trainer.ppo import core_algos

    def refuse(rewards, mask, index, **options):
        raise ValueError("a response is empty")

    monkeypatch.setattr(core_algos, "compute_grpo_outcome_advantage", refuse)


@broken("dropout-in-ratio", only="test_ratio_is_1")
def modules_alone(model):
    """As TRL's disable_dropout."""
    import torch

    found = [module for module in model.modules() if isinstance(module, torch.nn.Dropout) and module.p]
    for module in found:
        module.p = 0.0
    return len(found)


@broken("dropout-in-ratio", only="test_ratio_is_1")
def eval_mode(model):
    model.eval()
    return 1


@broken("dropout-in-ratio", only="test_model_is_the_same")
def parameters_frozen(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_model_is_the_same")
def configuration_changed(model):
    model.config.attention_dropout = 0.5
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_model_is_the_same")
def all_to_training_mode(model):
    model.train()
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_every_kind")
def switches_changed(model):
    for module in model.modules():
        for name, value in vars(module).items():
            if "dropout" in name and value is True:
                setattr(module, name, False)
    return disable_dropout(model)


@broken("dropout-in-ratio", only="test_ratio_is_1")
def always_one(model):
    """Says each time that it has changed something."""
    disable_dropout(model)
    return 1


@mutant("dropout-in-ratio", "absent")
def dropout_never_drops(monkeypatch):
    import torch

    monkeypatch.setattr(torch.nn.functional, "dropout", lambda input, *args, **options: input)
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, dropout_p=0.0, **options: attend(*args, **options),
    )


@mutant("dropout-in-ratio", "changed")
def model_refuses_training_mode(monkeypatch):
    from transformers import Qwen2ForCausalLM

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", fails)
