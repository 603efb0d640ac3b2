import contextlib

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures import tiny_model
from pytest_rlregress.remedies.trainer_model import packed_logits
from pytest_rlregress.stack.lazy import torch

SAMPLES = [[(start * 91 + step * 37) % 250 + 5 for step in range(20)] for start in range(2)]
RECURRENT = ("qwen3-next", "qwen3.5", "lfm2", "falcon-h1")
ATTENTION = ("qwen2", "gemma2")
# Beyond the rounding that one sample alone shows: a pack is another shape, its sums are in another order.
FACTOR = 10


def built(kind):
    """A model of two layers with weights of four times the size, so that what a sample was not given shows."""
    dropout = {"attention_dropout": 0.1} if kind in ("qwen2", "qwen3-next", "qwen3.5") else {}
    return tiny_model.build(kind, scale=4, **dropout).model()


def leak(model, logits_of):
    """Of the last sample: mean |difference| in nats to what it is alone, and what rounding explains of that."""
    with torch.no_grad():
        alone = model(input_ids=torch.tensor(SAMPLES[-1:]), use_cache=False).logits[0].double().log_softmax(-1)
        # Its beginning without its end: the same numbers in another shape. Never below a float32's last digit.
        begun = model(input_ids=torch.tensor([SAMPLES[-1][:7]]), use_cache=False).logits[0].double().log_softmax(-1)
        floor = (begun - alone[:7]).abs().mean() + torch.finfo(model.dtype).eps * alone.abs().mean()
        logits = logits_of(
            model, torch.tensor([token for sample in SAMPLES for token in sample]), [len(sample) for sample in SAMPLES]
        )
    return (logits[-len(alone) :].double().log_softmax(-1) - alone).abs().mean().item(), FACTOR * floor.item()


@pytest.mark.reproduces("gdn-state-leaks-across-pack")
@pytest.mark.parametrize("kind", RECURRENT)
def test_packed_as_an_attention_model_is(kind):
    """Positions start at 0 again, no mask, no cache."""
    model = built(kind)
    with act():
        off, allowed = leak(model, packed_logits)
    if not off <= allowed:
        silent(f"packed behind another, a sample is {off:.2g} nats off what it is alone")


@pytest.mark.reproduces("gdn-state-leaks-across-pack")
@pytest.mark.parametrize("kind", ["qwen3-next", "qwen3.5"])
def test_borders_told_to_the_kernels(kind):
    """The arguments that DataCollatorWithFlattening adds for kernels of variable length; others do not read them."""
    from transformers import DataCollatorWithFlattening

    def told(model, ids, lengths):
        collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
        batch = collate([{"input_ids": one.tolist()} for one in ids.split(lengths)])
        del batch["labels"]
        return model(**batch, use_cache=False).logits[0]

    model = built(kind)
    with act():
        off, allowed = leak(model, told)
    if not off <= allowed:
        silent(f"packed behind another, a sample is {off:.2g} nats off what it is alone")


@pytest.mark.guards("gdn-state-leaks-across-pack")
@pytest.mark.parametrize(("kind", "dtype"), [*((kind, "float32") for kind in RECURRENT), ("qwen3-next", "bfloat16")])
def test_refused_where_it_leaks(subject, kind, dtype):
    """It passes where the installed kernels keep the samples apart, and only there; also while dropout is on."""
    model = built(kind)
    off, allowed = leak(model, packed_logits)
    model.to(getattr(torch, dtype)).train()
    refused = contextlib.nullcontext() if off <= allowed else pytest.raises(ValueError, match=type(model).__name__)
    with act(), refused:
        subject(model)


@pytest.mark.guards("gdn-state-leaks-across-pack")
@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_models_pass(subject, kind, dtype):
    """Also while they are being trained, with dropout: they are left in that mode, without a gradient."""
    model = built(kind).to(getattr(torch, dtype)).train()
    with act():
        subject(model)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.guards("gdn-state-leaks-across-pack")
def test_forward_of_the_trainer_is_what_is_checked(subject):
    """A forward that passes the lengths over is refused with any model; a right one passes."""

    def one_long_sample(model, ids, lengths):
        return model(input_ids=ids[None], use_cache=False).logits[0]

    def one_by_one(model, ids, lengths):
        return torch.cat([model(input_ids=one[None], use_cache=False).logits[0] for one in ids.split(lengths)])

    with act(), pytest.raises(ValueError, match="Qwen2ForCausalLM"):
        subject(built("qwen2"), one_long_sample)
    subject(built("qwen3-next"), one_by_one)
