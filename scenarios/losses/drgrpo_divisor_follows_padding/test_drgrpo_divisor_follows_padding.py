import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack.lazy import torch

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
    with act():
        said = gradient_of(loss, per_width, drawn_batch([6])).change("padding")
    if said:
        assert "times the whole batch's" in said, said
        silent(f"the same responses in a wider batch have another gradient: {said}")


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_constant_divisor(gradient_of, subject):
    def loss(batch):
        return subject(trainers.token_losses(batch), batch.mask, batch.batch_sequences, MAX_TOKENS)

    changes = ["padding", "micro-batches", "dynamic-batches", "row-order", "masked-values"]
    gradient_of(loss, per_max_tokens).unchanged_by(*changes)


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_mean_over_ranks(gradient_of, subject):
    def part(losses, mask, batch):
        return subject(losses, mask, batch.batch_sequences, MAX_TOKENS, ranks=2)

    with act():
        gradient_of(trainers.mean_over_ranks(part), per_max_tokens)


@pytest.mark.guards("drgrpo-divisor-follows-padding")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_nan_under_the_mask_counts_nothing(subject, dtype):
    trainers.check_nan_under_mask(subject, dtype, 8, 2, 4)


@pytest.mark.guards("drgrpo-divisor-follows-padding")
def test_rejects_more_tokens_or_rows_than_the_batch_has(subject):
    losses, mask = torch.ones(2, 5), torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
    with act():
        assert subject(losses, mask, 2, 4).item() == 6 / 8
    with pytest.raises(ValueError, match=r"\b4\b.*\b3\b"):
        subject(losses, mask, 2, 3)
    with pytest.raises(ValueError, match=r"\b2\b.*\b1\b"):
        subject(losses, mask, 1, 4)
