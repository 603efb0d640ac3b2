"""Broken remedies of building-blocks, and stacks that differ."""

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


@mutant("regressed", only="test_verl_advantages")
def deviation_of_the_population(monkeypatch):
    import torch

    std = torch.std
    monkeypatch.setattr(torch, "std", lambda values: std(values, correction=0))


@mutant("regressed", only="test_verl_loss")
def mean_over_padding_too(monkeypatch):
    original = sound(f"{ALGOS}.agg_loss")

    def agg_loss(loss_mat, loss_mask, loss_agg_mode, **settings):
        return original(loss_mat, loss_mask.new_ones(loss_mask.shape), loss_agg_mode, **settings)

    monkeypatch.setattr(f"{ALGOS}.agg_loss", agg_loss)


@mutant("regressed", only="test_verl_weights")
def correction_left_out(monkeypatch):
    losses = sound(f"{ALGOS}.POLICY_LOSS_REGISTRY")
    original = losses["vanilla"]
    monkeypatch.setitem(losses, "vanilla", lambda **given: original(**{**given, "rollout_is_weights": None}))


@mutant("regressed", only="test_verl_adds")
def divergence_without_a_gradient(monkeypatch):
    original = sound("verl.workers.utils.losses.kl_penalty")
    monkeypatch.setattr("verl.workers.utils.losses.kl_penalty", lambda **given: original(**given).detach())


@mutant("regressed", only="test_trl_loss")
def upper_clip_is_the_lower(monkeypatch):
    original = sound(f"{STEP}.policy_loss")

    def policy_loss(logprobs, old_logprobs, advantages, mask, level, low, high):
        return original(logprobs, old_logprobs, advantages, mask, level, low, low)

    monkeypatch.setattr(f"{STEP}.policy_loss", policy_loss)


@mutant("regressed", only="test_verl_stops")
def second_bound_at_two(monkeypatch):
    losses = sound(f"{ALGOS}.POLICY_LOSS_REGISTRY")
    original = losses["vanilla"]

    def vanilla(old_log_prob, log_prob, **rest):
        return original(old_log_prob, old_log_prob + (log_prob - old_log_prob).clamp(max=math.log(2)), **rest)

    monkeypatch.setitem(losses, "vanilla", vanilla)


@mutant("regressed", only="test_verl_divergence")
def reference_and_policy_swapped(monkeypatch):
    original = sound(f"{ALGOS}.kl_penalty")
    monkeypatch.setattr(f"{ALGOS}.kl_penalty", lambda one, other, name: original(other, one, name))


@mutant("regressed", only="test_trl_divergence")
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


@mutant("regressed", only="test_trl_corrects")
def weights_of_one(monkeypatch):
    def ones(batch):
        return {**batch, "importance_sampling_ratio": batch["importance_sampling_ratio"].new_ones(1)}

    score(monkeypatch, lambda trainer: ones)
