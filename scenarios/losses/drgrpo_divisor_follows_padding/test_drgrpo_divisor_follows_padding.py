"""Dr. GRPO divides by a constant length; where that is the batch's width, the longest response rescales the step."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers

MAX_TOKENS = 16


def told_no_length(batch):
    """verl's default: loss_scale_factor is null."""
    return {}


def per_width(batch):
    return -batch.advantages.double() * batch.mask / batch.mask.shape[1]


def per_max_tokens(batch):
    return -batch.advantages.double() * batch.mask / (batch.batch_sequences * MAX_TOKENS)


@pytest.mark.reproduces("drgrpo-divisor-follows-padding")
def test_verl_padded_wider(gradient_of):
    """One response, beside which a longer one or none stands in the batch."""
    from pytest_rlregress.agreement.policy_batch import drawn_batch

    loss = trainers.verl_loss("seq-mean-token-sum-norm", told_no_length)
    said = gradient_of(loss, per_width, drawn_batch([6])).change("padding")
    if said:
        assert "times the whole batch's" in said, said
        silent(said)


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_constant_divisor(gradient_of, subject):
    def loss(batch):
        return subject(trainers.token_losses(batch), batch.mask, batch.batch_sequences, MAX_TOKENS)

    changes = ["padding", "micro-batches", "dynamic-batches", "row-order", "masked-values"]
    gradient_of(loss, per_max_tokens).unchanged_by(*changes)


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_mean_over_ranks(gradient_of, subject):
    """Each half of the rows on a rank of its own; data parallelism takes the mean of the ranks' gradients."""

    def loss(batch):
        halves = zip(trainers.token_losses(batch).chunk(2), batch.mask.chunk(2), strict=True)
        parts = [subject(losses, mask, batch.batch_sequences, MAX_TOKENS, ranks=2) for losses, mask in halves]
        return sum(parts) / 2

    gradient_of(loss, per_max_tokens)


@pytest.mark.guards("drgrpo-divisor-follows-padding")
@pytest.mark.parametrize(("dtype", "least"), [("float32", 2**-20), ("float64", 2**-40), ("bfloat16", 0)])
def test_nan_under_the_mask(subject, dtype, least):
    """``least`` is lost in a lower precision."""
    import torch

    nan = float("nan")
    losses = torch.tensor([[1.0 + least, nan, 3.0], [nan, nan, nan]], dtype=getattr(torch, dtype), requires_grad=True)
    for mask in (torch.tensor([[1, 0, 1], [0, 0, 0]]), torch.tensor([[True, False, True], [False, False, False]])):
        value = subject(losses, mask, 2, 4)
        (gradient,) = torch.autograd.grad(value, losses)
        assert (value.item(), value.shape, value.dtype) == ((4 + least) / 8, (), losses.dtype)
        assert gradient.tolist() == [[0.125, 0, 0.125], [0, 0, 0]]


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_response_longer_than_the_constant(subject):
    """The constant is too small, or is not that of this run."""
    import torch

    losses, mask = torch.ones(2, 5), torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    assert subject(losses, mask, 2, 4).item() == 6 / 8
    with pytest.raises(ValueError, match=r"\b4\b.*\b3\b"):
        subject(losses, mask, 2, 3)


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_micro_batch_without_rows(subject):
    import torch

    assert subject(torch.ones(0, 3), torch.ones(0, 3), 2, 4).item() == 0


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_more_rows_than_the_batch(subject):
    import torch

    with pytest.raises(ValueError, match=r"\b2\b.*\b1\b"):
        subject(torch.ones(2, 3), torch.ones(2, 3), 1, 4)
