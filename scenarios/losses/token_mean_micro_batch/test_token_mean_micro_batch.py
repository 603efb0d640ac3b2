"""The mean over the tokens of each micro batch: tokens weigh by how long their neighbours are."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers


def told_nothing(batch):
    """As verl's loss is called outside of its own engines."""
    return {}


def check_split(gradient_of, loss, change):
    said = gradient_of(loss, "token-mean").change(change)
    if said:
        assert "times the whole batch's" in said, said
        silent(said)


@pytest.mark.reproduces("token-mean-micro-batch")
@pytest.mark.parametrize("change", ["micro-batches", "dynamic-batches"])
def test_verl_token_mean(gradient_of, change):
    check_split(gradient_of, trainers.verl_loss("token-mean", told_nothing), change)


@pytest.mark.reproduces("token-mean-micro-batch")
def test_trl_bnpo(gradient_of, tiny_qwen, tmp_path):
    check_split(gradient_of, trainers.trl_grpo_loss(tiny_qwen, tmp_path, loss_type="bnpo"), "micro-batches")


@pytest.mark.guards("token-mean-micro-batch")
def test_every_token_weighs_the_same(gradient_of, subject):
    def loss(batch):
        return subject(trainers.token_losses(batch), batch.mask, batch.batch_tokens)

    changes = ["micro-batches", "dynamic-batches", "padding", "packing", "row-order", "masked-values"]
    gradient_of(loss, "token-mean").unchanged_by(*changes)


@pytest.mark.guards("token-mean-micro-batch")
def test_mean_over_ranks(gradient_of, subject):
    """Each half of the rows on a rank of its own; data parallelism takes the mean of the ranks' gradients."""

    def loss(batch):
        halves = zip(trainers.token_losses(batch).chunk(2), batch.mask.chunk(2), strict=True)
        return sum(subject(losses, mask, batch.batch_tokens, ranks=2) for losses, mask in halves) / 2

    gradient_of(loss, "token-mean")


@pytest.mark.guards("token-mean-micro-batch")
@pytest.mark.parametrize(("dtype", "least"), [("float32", 2**-20), ("float64", 2**-40), ("bfloat16", 0)])
def test_nan_under_the_mask(subject, dtype, least):
    """``least`` is lost in a lower precision."""
    import torch

    nan = float("nan")
    losses = torch.tensor([[1.0 + least, nan, 3.0], [nan, nan, 5.0]], dtype=getattr(torch, dtype), requires_grad=True)
    for mask in (torch.tensor([[1, 0, 1], [0, 0, 1]]), torch.tensor([[True, False, True], [False, False, True]])):
        mean = subject(losses, mask, 4)  # another micro batch has the fourth
        (gradient,) = torch.autograd.grad(mean, losses)
        assert (mean.item(), mean.shape, mean.dtype) == ((9 + least) / 4, (), losses.dtype)
        assert gradient.tolist() == [[0.25, 0, 0.25], [0, 0, 0.25]]


@pytest.mark.guards("token-mean-micro-batch")
def test_micro_batch_without_trained_tokens(subject):
    import torch

    losses = torch.ones(2, 3, requires_grad=True)
    mean = subject(losses, torch.zeros(2, 3, dtype=torch.int64), 4)
    mean.backward()
    assert (mean.item(), losses.grad.abs().sum().item()) == (0, 0)


@pytest.mark.guards("token-mean-micro-batch")
def test_batch_of_one_token(subject):
    import torch

    assert subject(torch.full((1, 2), 3.0), torch.tensor([[0, 1]]), 1).item() == 3


@pytest.mark.guards("token-mean-micro-batch")
@pytest.mark.parametrize(
    ("mask", "batch_tokens"), [([[1, 1], [1, 0]], 2), ([[0, 0], [0, 0]], 0)], ids=["fewer", "none"]
)
def test_impossible_number_of_tokens(subject, mask, batch_tokens):
    """Such as the mean of the micro batches' tokens instead of their sum."""
    import torch

    with pytest.raises(ValueError, match=rf"\b{batch_tokens}\b"):
        subject(torch.ones(2, 2), torch.tensor(mask), batch_tokens)
