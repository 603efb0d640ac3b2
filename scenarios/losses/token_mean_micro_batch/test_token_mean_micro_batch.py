import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.losses import trainers
from pytest_rlregress.stack.lazy import torch


def told_nothing(batch):
    """As verl's loss is called outside of its own engines."""
    return {}


def check_split(gradient_of, loss, change):
    said = gradient_of(loss, "token-mean").change(change)
    if said:
        assert "times the whole batch's" in said, said
        silent(f"the same batch in micro batches has another gradient: {said}")


@pytest.mark.reproduces("token-mean-micro-batch")
@pytest.mark.parametrize("change", ["micro-batches", "dynamic-batches"])
def test_verl_token_mean(gradient_of, change):
    with act():
        check_split(gradient_of, trainers.verl_loss("token-mean", told_nothing), change)


@pytest.mark.reproduces("token-mean-micro-batch")
def test_trl_bnpo(gradient_of, tiny_qwen, tmp_path):
    with act():
        check_split(gradient_of, trainers.trl_grpo_loss(tiny_qwen, tmp_path, loss_type="bnpo"), "micro-batches")


@pytest.mark.guards("token-mean-micro-batch")
def test_every_token_weighs_the_same(gradient_of, subject):
    def loss(batch):
        return subject(trainers.token_losses(batch), batch.mask, batch.batch_tokens)

    changes = ["micro-batches", "dynamic-batches", "padding", "packing", "row-order", "masked-values"]
    gradient_of(loss, "token-mean").unchanged_by(*changes)


@pytest.mark.guards("token-mean-micro-batch")
def test_micro_batch_without_trained_tokens_is_0(subject):
    losses = torch.ones(2, 3, requires_grad=True)
    with act():
        mean = subject(losses, torch.zeros(2, 3, dtype=torch.int64), 4)
    mean.backward()
    assert (mean.item(), losses.grad.abs().sum().item()) == (0, 0)


@pytest.mark.guards("token-mean-micro-batch")
@pytest.mark.parametrize(
    ("mask", "batch_tokens"), [([[1, 1], [1, 0]], 2), ([[0, 0], [0, 0]], 0)], ids=["fewer", "none"]
)
def test_rejects_fewer_tokens_than_the_micro_batch_has(subject, mask, batch_tokens):
    """Such as the mean of the micro batches' tokens instead of their sum."""
    with act(), pytest.raises(ValueError, match=rf"\b{batch_tokens}\b"):
        subject(torch.ones(2, 2), torch.tensor(mask), batch_tokens)


@pytest.mark.guards("token-mean-micro-batch")
def test_mean_over_ranks(gradient_of, subject):
    def part(losses, mask, batch):
        return subject(losses, mask, batch.batch_tokens, ranks=2)

    with act():
        gradient_of(trainers.mean_over_ranks(part), "token-mean")


@pytest.mark.guards("token-mean-micro-batch")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_nan_under_the_mask_counts_nothing(subject, dtype):
    trainers.check_nan_under_mask(subject, dtype, 4, 4)  # another micro batch has the other two tokens
