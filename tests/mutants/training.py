"""Mutants of scenarios/training: trainers' functions, or the miniature step's, that compute something near."""

from __future__ import annotations

import math

from mutants import mutant

ALGOS = "verl.trainer.ppo.core_algos"
STEP = "pytest_rlregress.fixtures.training_step"


def sound(path):
    """The function at ``package.module.name``."""
    from importlib import import_module

    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@mutant("building-blocks", "regressed", only="test_verl_advantages")
def deviation_of_the_population(monkeypatch):
    import torch

    std = torch.std
    monkeypatch.setattr(torch, "std", lambda values: std(values, correction=0))


@mutant("building-blocks", "regressed", only="test_verl_advantages")
def trls_epsilon(monkeypatch):
    original = sound(f"{STEP}.group_advantages")
    monkeypatch.setattr(f"{STEP}.group_advantages", lambda rewards, size: original(rewards, size, epsilon=1e-4))


@mutant("building-blocks", "regressed", only="test_verl_loss")
def mean_over_padding_too(monkeypatch):
    original = sound(f"{ALGOS}.agg_loss")

    def agg_loss(loss_mat, loss_mask, loss_agg_mode, **settings):
        return original(loss_mat, loss_mask.new_ones(loss_mask.shape), loss_agg_mode, **settings)

    monkeypatch.setattr(f"{ALGOS}.agg_loss", agg_loss)


@mutant("building-blocks", "regressed", only="test_verl_loss")
def every_mean_is_of_tokens(monkeypatch):
    original = sound(f"{ALGOS}.agg_loss")

    def agg_loss(loss_mat, loss_mask, loss_agg_mode, **settings):
        return original(loss_mat, loss_mask, "token-mean", **settings)

    monkeypatch.setattr(f"{ALGOS}.agg_loss", agg_loss)


def tell(monkeypatch, **replaced):
    """Have verl's means told something else of the whole batch; each value is computed from the micro batch's mask."""
    original = sound(f"{ALGOS}.agg_loss")

    def agg_loss(loss_mat, loss_mask, loss_agg_mode, **settings):
        told = {name: value(loss_mask) for name, value in replaced.items()}
        return original(loss_mat, loss_mask, loss_agg_mode, **{**settings, **told})

    monkeypatch.setattr(f"{ALGOS}.agg_loss", agg_loss)


@mutant("building-blocks", "regressed", only="test_verl_loss")
def tokens_of_the_micro_batch(monkeypatch):
    tell(monkeypatch, batch_num_tokens=lambda mask: mask.sum())


@mutant("building-blocks", "regressed", only="test_verl_loss")
def rows_of_the_micro_batch(monkeypatch):
    tell(monkeypatch, global_batch_size=len)


@mutant("building-blocks", "regressed", only="test_verl_loss")
def means_of_ranks_averaged_again(monkeypatch):
    tell(monkeypatch, dp_size=lambda mask: 1)


@mutant("building-blocks", "regressed", only="test_verl_loss")
def constant_that_follows_padding(monkeypatch):
    tell(monkeypatch, loss_scale_factor=lambda mask: mask.shape[1])


@mutant("building-blocks", "regressed", only="test_verl_weights")
def correction_left_out(monkeypatch):
    losses = sound(f"{ALGOS}.POLICY_LOSS_REGISTRY")
    original = losses["vanilla"]
    monkeypatch.setitem(losses, "vanilla", lambda **given: original(**{**given, "rollout_is_weights": None}))


@mutant("building-blocks", "regressed", only="test_verl_adds")
def divergence_without_a_gradient(monkeypatch):
    original = sound("verl.workers.utils.losses.kl_penalty")
    monkeypatch.setattr("verl.workers.utils.losses.kl_penalty", lambda **given: original(**given).detach())


@mutant("building-blocks", "regressed", only="test_verl_loss")
@mutant("building-blocks", "regressed", only="test_trl_loss")
def upper_clip_is_the_lower(monkeypatch):
    original = sound(f"{STEP}.policy_loss")

    def policy_loss(logprobs, old_logprobs, advantages, mask, level, low, high):
        return original(logprobs, old_logprobs, advantages, mask, level, low, low)

    monkeypatch.setattr(f"{STEP}.policy_loss", policy_loss)


@mutant("building-blocks", "regressed", only="test_verl_loss")
def ratio_of_the_whole_sequence(monkeypatch):
    """GSPO's without the length that it is normalised by."""
    original = sound(f"{STEP}.policy_loss")

    def policy_loss(logprobs, old_logprobs, advantages, mask, level, *clips):
        if level == "sequence":
            logprobs = old_logprobs + (logprobs - old_logprobs) * mask.sum(dim=1, keepdim=True)
        return original(logprobs, old_logprobs, advantages, mask, level, *clips)

    monkeypatch.setattr(f"{STEP}.policy_loss", policy_loss)


@mutant("building-blocks", "regressed", only="test_verl_stops")
def second_bound_at_two(monkeypatch):
    losses = sound(f"{ALGOS}.POLICY_LOSS_REGISTRY")
    original = losses["vanilla"]

    def vanilla(old_log_prob, log_prob, **rest):
        return original(old_log_prob, old_log_prob + (log_prob - old_log_prob).clamp(max=math.log(2)), **rest)

    monkeypatch.setitem(losses, "vanilla", vanilla)


@mutant("building-blocks", "regressed", only="test_verl_stops")
def no_second_bound(monkeypatch):
    import torch

    where = torch.where
    # The second bound is chosen by torch.where(advantages < 0, …).
    monkeypatch.setattr(torch, "where", lambda chosen, yes, no: where(chosen.new_zeros(chosen.shape), yes, no))


@mutant("building-blocks", "regressed", only="test_verl_divergence")
def reference_and_policy_swapped(monkeypatch):
    original = sound(f"{ALGOS}.kl_penalty")
    monkeypatch.setattr(f"{ALGOS}.kl_penalty", lambda one, other, name: original(other, one, name))


@mutant("building-blocks", "regressed", only="test_trl_loss")
def off_by_a_millionth(monkeypatch):
    original = sound("trl.GRPOTrainer").compute_loss
    monkeypatch.setattr("trl.GRPOTrainer.compute_loss", lambda *args: original(*args) * (1 + 1e-6))


@mutant("building-blocks", "regressed", only="test_trl_divergence")
def half_the_penalty(monkeypatch):
    original = sound("trl.GRPOTrainer").compute_loss

    def compute_loss(trainer, *args):
        trainer.beta /= 2
        return original(trainer, *args)

    monkeypatch.setattr("trl.GRPOTrainer.compute_loss", compute_loss)


def score(monkeypatch, change):
    """Have TRL's trainer call ``change(trainer)`` before it scores, and give the batch to what that returns."""
    original = sound("trl.GRPOTrainer")._generate_and_score_completions

    def scored(trainer, inputs):
        after = change(trainer)
        batch = original(trainer, inputs)
        return after(batch) if after else batch

    monkeypatch.setattr("trl.GRPOTrainer._generate_and_score_completions", scored)


@mutant("building-blocks", "regressed", only="test_trl_corrects")
def weights_of_one(monkeypatch):
    def ones(batch):
        return {**batch, "importance_sampling_ratio": batch["importance_sampling_ratio"].new_ones(1)}

    score(monkeypatch, lambda trainer: ones)


@mutant("building-blocks", "regressed", only="test_trl_corrects")
def weights_cut_off_at_two(monkeypatch):
    def lower(trainer):
        trainer.vllm_importance_sampling_clip_max = 2.0

    score(monkeypatch, lower)


@mutant("building-blocks", "regressed", only="test_trl_corrects")
def weights_upside_down(monkeypatch):
    def inverted(batch):
        ratio = batch["importance_sampling_ratio"]
        return {**batch, "importance_sampling_ratio": ratio.reciprocal().nan_to_num(posinf=0.0)}

    score(monkeypatch, lambda trainer: inverted)
