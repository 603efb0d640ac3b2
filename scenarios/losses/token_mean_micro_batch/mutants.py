"""Broken remedies of token-mean-micro-batch, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant

SCENARIO = "pytest_rlregress.scenarios.losses.token_mean_micro_batch.test_token_mean_micro_batch"


@broken(only="test_every_token")
def mean_of_the_micro_batch(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() / mask.sum() / 2


@broken(only="test_nan")
def mask_multiplied(losses, mask, batch_tokens, ranks=1):
    return (losses * mask).sum() * ranks / batch_tokens


@mutant("absent", only="test_verl")
def engine_tells_the_batch(monkeypatch):
    """As verl's engines do; it takes the mean over micro batches for one over ranks."""
    told = f"{SCENARIO}.told_nothing"
    monkeypatch.setattr(told, lambda batch: {"batch_num_tokens": batch.batch_tokens, "dp_size": batch.parts})


@mutant("changed", only="test_verl")
def verl_averages_sequences(monkeypatch):
    from verl.trainer.ppo import core_algos

    agg_loss = core_algos.agg_loss
    monkeypatch.setattr(
        core_algos,
        "agg_loss",
        lambda loss_mat, loss_mask, loss_agg_mode: agg_loss(loss_mat, loss_mask, "seq-mean-token-mean"),
    )
