"""Broken remedies of drgrpo-divisor-follows-padding, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import constant_length_mean

SCENARIO = "pytest_rlregress.scenarios.losses.drgrpo_divisor_follows_padding.test_drgrpo_divisor_follows_padding"


@broken(only="test_constant")
def width_of_the_batch(losses, mask, batch_sequences, max_tokens, ranks=1):
    return constant_length_mean(losses, mask, batch_sequences, mask.shape[1], ranks)


@broken(only="test_nan")
def mask_times_losses(losses, mask, batch_sequences, max_tokens, ranks=1):
    return (losses * mask).sum() * ranks / (batch_sequences * max_tokens)


@mutant("absent")
def configured_length(monkeypatch):
    """As with verl's loss_scale_factor set to the width that the gradient is compared with."""
    told = f"{SCENARIO}.told_no_length"
    monkeypatch.setattr(told, lambda batch: {"loss_scale_factor": 7})


@mutant("changed")
def no_such_mode(monkeypatch):
    from verl.trainer.ppo import core_algos

    agg_loss = core_algos.agg_loss
    monkeypatch.setattr(core_algos, "agg_loss", lambda losses, mask, mode: agg_loss(losses, mask, "no such mode"))
