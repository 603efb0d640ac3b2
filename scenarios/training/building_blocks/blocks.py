"""The miniature step's loss on a batch, and the comparison of a trainer's loss with it."""

from __future__ import annotations

LOW, HIGH = 0.2, 0.28
# In float64. Measured: at most 2e-15, and 2e-17 of a loss or its gradient. Allowed is the 1e-8 that verl adds to a
# number of tokens; a loss that is off by a millionth is out.
CLOSE = {"atol": 1e-9, "rtol": 1e-8}


def off_policy(noise):
    """Completions whose log-probabilities moved by about ``noise`` nats since they were sampled, some clipped."""
    from dataclasses import replace

    import torch

    from pytest_rlregress.agreement.policy_batch import drawn_batch

    batch = drawn_batch((8, 3, 6, 2, 7, 5))
    draw = torch.Generator().manual_seed(1)
    advantages = torch.randn(len(batch.mask), 1, generator=draw).expand(batch.mask.shape)
    moved = batch.old_log_probs + noise * torch.randn(batch.mask.shape, generator=draw)
    log_probs = moved.clamp(max=-0.01)  # no token is likelier than certain
    batch = replace(batch, advantages=advantages, log_probs=log_probs).with_floats(lambda tensor: tensor.double())
    return replace(batch, log_probs=batch.log_probs.requires_grad_())


def ours(batch, level="token"):
    """The miniature step's loss."""
    from pytest_rlregress.fixtures import training_step

    return training_step.policy_loss(
        batch.log_probs, batch.old_log_probs, batch.advantages[:, 0], batch.mask, level, LOW, HIGH
    )


def gradient(loss, batch):
    """The gradient of the batch's log-probabilities."""
    import torch

    return torch.autograd.grad(loss, batch.log_probs)[0]


def weight_of_rows(batch, mean, longest):
    """How much more than in a mean of each completion's mean the tokens of a row weigh."""
    lengths = batch.mask.sum(dim=1, keepdim=True).double()
    sums = {"sequence-mean": 1 / lengths, "token-mean": len(lengths) / lengths.sum(), "sum": 1, "constant": 1 / longest}
    return lengths * sums[mean]


def check_loss(theirs, batch, level="token", mean="sequence-mean", longest=1):
    """Their gradient is ours, each row's times the weight that their mean gives it; with our mean so is the loss."""
    import torch

    expected = gradient(ours(batch, level), batch) * weight_of_rows(batch, mean, longest)
    assert expected.count_nonzero(), "no token has a gradient: nothing is compared"
    torch.testing.assert_close(gradient(theirs, batch), expected, **CLOSE)
    if mean == "sequence-mean":
        torch.testing.assert_close(theirs.detach(), ours(batch, level).detach(), **CLOSE)
