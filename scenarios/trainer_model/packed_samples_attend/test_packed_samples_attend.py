import functools

import pytest

from pytest_rlregress.agreement import logprobs
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.stack.lazy import torch

SAMPLES = [[(start * 91 + step * 37) % 1000 + 5 for step in range(12 + start)] for start in range(3)]
LENGTHS = [len(sample) for sample in SAMPLES]
IDS = [token for sample in SAMPLES for token in sample]
# Beyond the floor: a packed row is as long as all its samples, its sums are in yet another order.
FACTOR = 10


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request, sharp_qwen):
    model = sharp_qwen.model()
    model.set_attn_implementation(request.param)
    return model


def logprobs_of(logits, lengths=LENGTHS):
    """Of each sample's tokens given those before them in it, from the logits of all, ``[tokens, vocabulary]``."""
    ids = torch.tensor(IDS).split(lengths)
    rows = zip(logits.float().log_softmax(-1).split(lengths), ids, strict=True)
    return [row[:-1].gather(-1, one[1:, None])[:, 0].tolist() for row, one in rows]


@functools.cache
def alone_and_floor(model):
    """What the model says of each sample alone, and what agreement with it can be had, in nats a token."""
    return logprobs.token_logprobs(model, SAMPLES), logprobs.floor(model, SAMPLES)


def check_as_alone(model, found):
    alone, floor = alone_and_floor(model)
    first = logprobs.mean_gap(found[:1], alone[:1])
    assert first <= FACTOR * floor, f"the first sample, which nothing precedes, is {first:.2g} nats a token off"
    off = logprobs.mean_gap(found[1:], alone[1:])
    if not off <= FACTOR * floor:
        silent(f"packed samples are {off:.2g} nats a token off what each is alone")


def packed(ones_mask=False):
    """A packed row as transformers documents it: one row of ids, and positions that start at 0 with each sample."""
    row = {"input_ids": torch.tensor([IDS])}
    row["position_ids"] = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    return row | ({"attention_mask": torch.ones_like(row["input_ids"])} if ones_mask else {})


@pytest.mark.reproduces("packed-samples-attend")
@pytest.mark.parametrize("call", ["defaults", "ones-mask-without-cache"])
def test_positions_begin_anew(model, call):
    with act(), torch.no_grad():
        arguments = packed() if call == "defaults" else packed(ones_mask=True) | {"use_cache": False}
        logits = model(**arguments).logits[0]
    check_as_alone(model, logprobs_of(logits))


@pytest.mark.reproduces("packed-samples-attend")
def test_collated_batch_as_it_is(model):
    from transformers import DataCollatorWithFlattening

    with act():
        batch = DataCollatorWithFlattening()([{"input_ids": sample} for sample in SAMPLES])
        del batch["labels"]
        with torch.no_grad():
            logits = model(**batch).logits[0]
    check_as_alone(model, logprobs_of(logits))


def logits_alone(model, padding):
    rows = [model(input_ids=torch.tensor([[*one, *[0] * padding]])).logits[0, : len(one)] for one in SAMPLES]
    return torch.cat(rows)


@pytest.mark.guards("packed-samples-attend")
def test_packed_is_as_alone(subject, model):
    with act(), torch.no_grad():
        logits = subject(model, torch.tensor(IDS), LENGTHS)
        wanted, padded = logits_alone(model, 0), logits_alone(model, 3)
    assert (logits.shape, logits.dtype) == ((sum(LENGTHS), model.config.vocab_size), torch.float32)
    check_as_alone(model, logprobs_of(logits))
    floor = (padded - wanted).abs().max() + torch.finfo(torch.float32).eps * wanted.abs().max()
    assert (logits - wanted).abs().max() <= FACTOR * floor, "also those of no token that came"


@pytest.mark.guards("packed-samples-attend")
@pytest.mark.parametrize("lengths", [[2, 1, 1, 35], [39]], ids=["single-tokens", "one-sample"])
def test_last_sample_is_as_alone_whatever_precedes_it(subject, model, lengths):
    """The last sample's log-probabilities, whatever lies before it."""
    ids = torch.tensor(IDS)
    alone = ids[-lengths[-1] :].tolist()
    with act(), torch.no_grad():
        found = logprobs_of(subject(model, ids, lengths), lengths)[-1:]
    wanted, floor = logprobs.token_logprobs(model, [alone]), logprobs.floor(model, [alone])
    assert logprobs.mean_gap(found, wanted) <= FACTOR * floor


@pytest.mark.guards("packed-samples-attend")
def test_gradient_is_that_of_the_samples(subject, model):
    """Trained on a pack, the weights move as if each sample had been a row of its own; the model is left as it is."""

    def gradient(logits_of_all):
        logits, ids = logits_of_all(), torch.tensor(IDS).split(LENGTHS)
        rows = zip(logits.split(LENGTHS), ids, strict=True)
        loss = sum(torch.nn.functional.cross_entropy(row[:-1], one[1:], reduction="sum") for row, one in rows)
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])

    def alone(order):
        rows = {at: model(input_ids=torch.tensor([SAMPLES[at]])).logits[0] for at in order}
        return torch.cat([rows[at] for at in sorted(rows)])

    before = model.config.to_dict(), model.training
    wanted = gradient(lambda: alone([0, 1, 2]))
    # Adding the samples up in another order is the same but for rounding.
    floor = (gradient(lambda: alone([2, 0, 1])) - wanted).norm() + wanted.norm() * torch.finfo(wanted.dtype).eps
    with act():
        found = gradient(lambda: subject(model, torch.tensor(IDS), LENGTHS))
    off = (found - wanted).norm()
    assert off <= FACTOR * floor, f"off by {off / wanted.norm():.2g} of the gradient, the floor is {floor:.2g}"
    assert (model.config.to_dict(), model.training) == before


@pytest.mark.guards("packed-samples-attend")
@pytest.mark.parametrize("lengths", [[12, 13], [12, 13, 15], [39, 0], []], ids=["fewer", "more", "empty", "none"])
def test_rejects_lengths_that_are_not_the_ids(subject, model, lengths):
    with act(), pytest.raises(ValueError, match="39"):
        subject(model, torch.tensor(IDS), lengths)
    with pytest.raises(ValueError, match="0"):
        subject(model, torch.tensor(IDS[:0]), [])
