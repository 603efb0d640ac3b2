"""Each check of a loss, or of advantages, fails for its own mistake and for no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_rlregress.agreement.gradients import advantages_of as checked_advantages
from pytest_rlregress.agreement.policy_batch import CHANGES, drawn_batch

pytestmark = [pytest.mark.isolated(group="gradients"), pytest.mark.needs("torch")]

MASKED = {"masked-values", "masked-non-finite"}


def objective(log_probs, old_log_probs, advantages, clip=0.2):
    import torch

    ratio = (log_probs - old_log_probs).exp()
    return -torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def token_losses(batch):
    """PPO's clipped objective of each token, 0 where the mask is, whatever stands there."""
    import torch

    names = ("log_probs", "old_log_probs", "advantages")
    return objective(*(torch.where(batch.mask.bool(), getattr(batch, name), 0.0) for name in names)) * batch.mask


def token_mean(batch):
    return token_losses(batch).sum() / batch.batch_tokens


def sequence_mean(batch):
    """By the sequences that tokens are of, so that rows may be packed."""
    import torch

    losses, tokens = torch.zeros(2, batch.batch_sequences + 1, dtype=batch.log_probs.dtype)
    places = batch.sequences.flatten() % (batch.batch_sequences + 1)
    losses = losses.index_add(0, places, token_losses(batch).flatten())
    tokens = tokens.index_add(0, places, batch.mask.flatten().to(tokens.dtype))
    return (losses / tokens.clamp(min=1)).sum() / batch.batch_sequences


def tokens_of_the_micro_batch(batch):
    return token_losses(batch).sum() / batch.mask.sum() / batch.parts


def rows_of_the_micro_batch(batch):
    return token_losses(batch).sum(-1).mean() / batch.parts


def width(batch):
    return token_losses(batch).sum() / (batch.batch_sequences * batch.mask.shape[1])


def width_at_first(batch):
    tokens = drawn_batch().mask.shape[1] * batch.batch_sequences
    return -batch.advantages.double() * batch.mask / tokens


def rows_for_sequences(batch):
    return (token_losses(batch).sum(-1) / batch.mask.sum(-1)).sum() / batch.batch_sequences


def advantages_of_sorted_rows(batch):
    return token_mean(replace(batch, advantages=batch.advantages[batch.sequences[:, 0].argsort()]))


def without_the_mask(batch):
    """Right as long as the advantages under the mask are zero."""
    return objective(batch.log_probs, batch.old_log_probs, batch.advantages).sum() / batch.batch_tokens


def mask_multiplied(batch):
    losses = objective(batch.log_probs, batch.old_log_probs, batch.advantages)
    return (losses * batch.mask).sum() / batch.batch_tokens


@pytest.mark.parametrize(("loss", "expected"), [(token_mean, "token-mean"), (sequence_mean, "sequence-mean")])
def test_accepts_a_correct_loss(gradient_of, loss, expected):
    checked = gradient_of(loss, expected)
    checked.unchanged_by()
    assert all(checked.change(name) == "" for name in CHANGES)


def test_drawn_batch_can_show_each_mistake():
    import torch

    batch = drawn_batch()
    ratio = (batch.log_probs - batch.old_log_probs).exp()[batch.mask.bool()]
    assert 0 < ((ratio - 1).abs() > 0.2).sum() < len(ratio)
    parts = [part.sum() for part in batch.mask.chunk(2)]
    assert parts[0] != parts[1]
    assert (batch.mask.sum(-1) > 0).all()
    assert (batch.mask[:, -1] == 0).all()
    assert ((batch.mask == 0) & (batch.sequences >= 0)).any(), "no token is masked inside of a sequence"
    assert (batch.rewards[batch.mask == 0] == 0).all()
    assert torch.equal((batch.rewards > 0).sum(-1), torch.ones(4).long())


@pytest.mark.parametrize(
    ("loss", "expected", "seen"),
    [
        (tokens_of_the_micro_batch, "token-mean", {"micro-batches", "dynamic-batches"}),
        (rows_of_the_micro_batch, "sequence-sum", {"dynamic-batches", "packing"}),
        (width, width_at_first, {"padding", "packing"}),
        (rows_for_sequences, "sequence-mean", {"packing"}),
        (advantages_of_sorted_rows, "token-mean", {"row-order"}),
        (without_the_mask, "token-mean", MASKED),
        (mask_multiplied, "token-mean", {"masked-non-finite"}),
    ],
)
def test_names_each_change_that_alters_a_broken_loss(gradient_of, loss, expected, seen):
    checked = gradient_of(loss, expected)
    assert {name for name in CHANGES if checked.change(name)} == seen
    checked.unchanged_by(*set(CHANGES) - seen)
    for name in seen:
        with pytest.raises(AssertionError, match=r"the gradient|the loss is"):
            checked.unchanged_by(name)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda batch: 2 * token_mean(batch), "at learning rate 0 the gradient is 2 times the closed form's"),
        (lambda batch: -token_mean(batch), "the gradient is -1 times"),
        (sequence_mean, r"the gradient of row \d, token \d is .* times the closed form's"),
        (lambda batch: 0 * token_mean(batch), "the gradient is zero everywhere"),
        (lambda batch: batch.advantages.sum(), "does not depend on the log-probabilities"),
        (lambda batch: token_mean(batch) / 0, "the loss is -?inf"),
        (lambda batch: token_mean(replace(batch, old_log_probs=batch.old_log_probs.roll(1, 1))), "the gradient of row"),
        (lambda batch: token_mean(batch.with_floats(lambda one: one.bfloat16().to(one.dtype))), "the gradient of row"),
    ],
    ids=["twice", "sign", "other-weights", "zero", "constant", "infinite", "ratio-of-another-token", "bfloat16"],
)
def test_rejects_a_loss_that_is_wrong_at_learning_rate_0(gradient_of, loss, said):
    with pytest.raises(AssertionError, match=said):
        gradient_of(loss, "token-mean")


def test_names_micro_batches_by_number(gradient_of):
    batch = drawn_batch()
    first = int(batch.mask[:2].sum())
    said = gradient_of(tokens_of_the_micro_batch, "token-mean").change("micro-batches")
    factors = [batch.batch_tokens / 2 / tokens for tokens in (first, batch.batch_tokens - first)]
    assert said.startswith("split in 2 micro batches the gradient of row ")
    assert any(f"is {factor:.3g} times the whole batch's" in said for factor in factors), said


def test_rejects_a_loss_that_is_not_computed_in_float32(gradient_of):
    """Rounding as coarse as that would hide a mistake."""
    import torch

    with pytest.raises(AssertionError, match=r"the gradient is 0.01 off in float32: it is not computed in float32"):
        gradient_of(
            lambda batch: token_mean(batch) * (1.01 if batch.log_probs.dtype == torch.float32 else 1), "token-mean"
        )


def test_rejects_unknown_names(gradient_of):
    with pytest.raises(ValueError, match="no weights 'tokens'; there are token-mean"):
        gradient_of(token_mean, "tokens")
    with pytest.raises(ValueError, match="no change 'splitting'; there are micro-batches"):
        gradient_of(token_mean, "token-mean").unchanged_by("splitting")


def centred(batch):
    """Reward minus the mean of the group's, by the groups' names."""
    import torch

    scores = torch.where(batch.mask.bool(), batch.rewards, 0.0).sum(-1)
    same = torch.tensor([[one == other for other in batch.groups] for one in batch.groups]).to(scores)
    return (scores - same @ scores / same.sum(-1))[:, None] * batch.mask


def centred_in_pairs(batch):
    """By another formula: in a group of two, half of the difference. The rows come in pairs."""
    scores = batch.rewards.double().sum(-1).reshape(-1, 2)
    return ((scores - scores.flip(-1)) / 2).flatten()[:, None] * batch.mask


def centred_on_the_batch(batch):
    import torch

    scores = torch.where(batch.mask.bool(), batch.rewards, 0.0).sum(-1)
    return (scores - scores.mean())[:, None] * batch.mask


def batch_mean(batch):
    scores = batch.rewards.double().sum(-1)
    return (scores - scores.mean())[:, None] * batch.mask


def rewards_under_the_mask(batch):
    import torch

    return centred(replace(batch, mask=torch.ones_like(batch.mask)))


def test_accepts_correct_advantages(advantages_of):
    advantages_of(centred, centred_in_pairs).unchanged_by()


@pytest.mark.parametrize(
    ("function", "expected", "seen"),
    [
        (centred_on_the_batch, batch_mean, {"micro-batches"}),
        (rewards_under_the_mask, centred_in_pairs, MASKED),
        (lambda batch: centred(replace(batch, groups=list("aabb"[: len(batch.groups)]))), centred_in_pairs, set()),
        (lambda batch: centred(replace(batch, groups=list("aaab"))), centred_in_pairs, None),
    ],
    ids=["baseline-of-the-batch", "rewards-under-the-mask", "other-names", "other-groups"],
)
def test_names_each_change_that_alters_broken_advantages(advantages_of, function, expected, seen):
    if seen is None:
        with pytest.raises(AssertionError, match=r"^the advantage of row"):
            advantages_of(function, expected)
        return
    checked = advantages_of(function, expected)
    assert {name for name in checked.applicable if checked.change(name)} == seen
    assert checked_advantages is advantages_of
