from statistics import median

import pytest

from pytest_rlregress.agreement.logprobs import mean_gap
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.sampling.rollouts import (
    PROCESSED,
    logits_of,
    sample,
    tolerance,
    trainer_logits,
    trainer_logprobs,
)
from pytest_rlregress.stack.lazy import torch

TRUNCATIONS = [{"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.05}]
ALL_OF_THEM = {"top_p": 0.8, "top_k": 20, "min_p": 0.02, "temperature": 0.7}


def named(sampling):
    return ",".join(f"{name}={value}" for name, value in sampling.items())


def median_gap(one, other):  # of a token, in nats
    return median(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


@PROCESSED
@pytest.mark.reproduces("truncated-support-logprobs")
@pytest.mark.parametrize("sampling", TRUNCATIONS, ids=named)
def test_ratio(processed_engine, trainer, sampling):
    with act():
        completions = sample(processed_engine, **sampling)
    allowed, wanted = tolerance(trainer, completions), trainer_logprobs(trainer, completions)
    given = [one.logprobs for one in completions]
    off, tokens = mean_gap(given, wanted), sum(map(len, given))
    above = (sum(map(sum, given)) - sum(map(sum, wanted))) / tokens
    # What is left has lost to nothing: every one of its tokens is likelier than it was.
    how = "above" if off - above < 2 * allowed else "from"
    if not off < allowed:
        assert how == "above", f"{off:.3f} nats a token from the trainer's, and not by what was left out"
        silent(f"sampled with {named(sampling)}, log-probabilities {off:.3f} nats a token {how} the trainer's")


@PROCESSED
@pytest.mark.guards("truncated-support-logprobs")
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, *TRUNCATIONS, ALL_OF_THEM], ids=named)
def test_agreement(processed_engine, trainer, subject, sampling):
    """An engine that gives log-probabilities of the whole vocabulary needs no remedy: there the trainer's own agree."""
    completions = sample(processed_engine, **sampling)
    settings = {"temperature": 1.0, **sampling}
    given = [one.logprobs for one in completions]
    with act():
        found = [subject(logits, ids, **settings).tolist() for logits, ids in trainer_logits(trainer, completions)]
    # The median: an id on the border by rounding belongs to the set for one of the two, and its token is off by 6e-4.
    off = median_gap(given, found)
    if any(name != "temperature" for name in sampling):
        off = min(off, median_gap(given, trainer_logprobs(trainer, completions, settings["temperature"])))
    allowed = tolerance(trainer, completions, settings["temperature"])
    assert off < allowed, f"sampled with {named(sampling)}, engine and trainer are {off:.2g} nats a token apart"


# Of the probabilities 0.4, 0.3, 0.2, 0.1 at temperature 1: what is left, and of it the probability of the first.
CASES = [
    ({}, 0.4),
    ({"top_k": -1}, 0.4),
    ({"top_k": 9}, 0.4),
    ({"top_k": 2}, 0.4 / 0.7),
    ({"top_k": 1}, 1.0),
    ({"top_p": 0.5}, 0.4 / 0.7),
    ({"top_p": 0.01}, 1.0),
    ({"min_p": 0.6}, 0.4 / 0.7),
    ({"top_p": 0.75}, 0.4 / 0.9),
    ({"top_p": 0.75, "top_k": 3}, 0.4 / 0.7),  # top_p of what top_k left
    ({"top_p": 0.75, "min_p": 0.45}, 0.4 / 0.7),  # and of what min_p left
    ({"top_p": 0.5, "temperature": 0.5}, 1.0),  # the likeliest has 0.53 then
]


@pytest.mark.guards("truncated-support-logprobs")
@pytest.mark.parametrize(("sampling", "probability"), CASES, ids=[named(sampling) or "none" for sampling, _ in CASES])
def test_what_is_left(subject, sampling, probability):
    logits = torch.stack([logits_of(0.2, 0.4, 0.1, 0.3), logits_of(0.3, 0.1, 0.4, 0.2)], 1)  # two tokens of a row
    before = logits.clone()
    with act():
        found = subject(logits, torch.tensor([[1, 2]]), **{"temperature": 1.0, **sampling})
    assert (found.dtype, found.shape) == (torch.float32, (1, 2))
    # Numbers of order one in float32: 24 bits.
    assert found.exp()[0].tolist() == pytest.approx([probability] * 2, rel=16 * 2**-24)
    assert logits.equal(before), "the caller's logits were changed"


@pytest.mark.guards("truncated-support-logprobs")
def test_ids_on_the_border_of_what_is_left(subject):
    """Of two ids as likely as each other both have all of the likeliest's share, and one has half before it."""
    logits, ids = torch.zeros(2, 2), torch.arange(2)
    mixed = torch.tensor([[0.0, 0.0], [5.0, 0.0]])
    with act():
        assert subject(mixed, 0 * ids, 1.0, min_p=1.0).exp().tolist() == pytest.approx([0.5, 1.0])
    assert sorted(subject(logits, ids, 1.0, top_p=0.5).exp().tolist()) == pytest.approx([0.5, 1.0])
    rare = torch.tensor([[40.0, 0.0]] * 2)  # the sum of all but the second is 1 in float32
    assert subject(logits, ids, 1.0, sampled_by=rare).exp().tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.guards("truncated-support-logprobs")
def test_later_policy_over_what_the_sampling_one_left(subject):
    """What was left is what the sampling policy left, and the gradient is of nothing else."""
    sampled_by, logits = logits_of(0.4, 0.3, 0.2, 0.1), logits_of(0.1, 0.2, 0.3, 0.4).requires_grad_()
    with act():
        found = subject(logits, torch.tensor([1]), 1.0, top_k=2, sampled_by=sampled_by.requires_grad_())
    assert found.exp().item() == pytest.approx(0.2 / 0.3, rel=16 * 2**-24)
    found.sum().backward()
    assert logits.grad[0].tolist() == pytest.approx([-1 / 3, 1 / 3, 0, 0], abs=16 * 2**-24)
    assert sampled_by.grad is None


@pytest.mark.guards("truncated-support-logprobs")
def test_sampled_id_counts_at_the_border(subject):
    """The engine's rounding let it through: it has a probability, if not by the trainer's rounding."""
    with act():
        found = subject(logits_of(0.4, 0.3, 0.2, 0.1), torch.tensor([2]), 1.0, top_k=2)
    assert found.exp().item() == pytest.approx(0.2 / 0.9, rel=16 * 2**-24)


@pytest.mark.guards("truncated-support-logprobs")
@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1}, {"min_p": 1.1}, {"sampled_by": 3}, {}],
    ids=named,
)
def test_rejects_settings_out_of_range(subject, wrong):
    wrong = {"sampled_by": logits_of(0.5, 0.3, 0.2)} if "sampled_by" in wrong else wrong
    ids = torch.tensor([1]) if wrong else torch.tensor([1, 1])
    with act(), pytest.raises(ValueError, match=r"temperature|top_p|min_p|shape"):
        subject(logits_of(0.4, 0.3, 0.2, 0.1), ids, **{"temperature": 1.0, **wrong})
