"""Mutants of scenarios/losses."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.losses import token_mean

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
