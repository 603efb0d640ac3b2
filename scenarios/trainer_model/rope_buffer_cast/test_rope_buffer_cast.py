import json

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.stack.lazy import torch

POSITIONS = 4096
DTYPES = ["bfloat16", "float16"]
CASTS = {
    "to": lambda model: model.to(_dtype("bfloat16")),
    "bfloat16": lambda model: model.bfloat16(),
    "half": lambda model: model.half(),
    "and-back": lambda model: model.bfloat16().float(),
}


def _dtype(name):
    return getattr(torch, name)


def exact_table(directory):
    """Cosines and sines in float64, ``[2, positions, head size]``."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    size = config["hidden_size"] // config["num_attention_heads"]
    frequencies = config["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(POSITIONS)[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return torch.stack([angles.cos(), angles.sin()])


def check_table(tiny_qwen, model):
    """The rotary table in float32 is as near to float64's as that of a model that nobody has cast."""

    def off(one):
        positions = torch.arange(POSITIONS)[None]
        table = torch.stack(one.model.rotary_emb(torch.zeros(1), positions))[:, 0].double()
        return (table - exact_table(tiny_qwen.directory)).abs().amax(dim=(0, 2))

    found, floor = off(model), off(tiny_qwen.model()).max()
    # Twice: a table computed in another way has rounding of its own.
    if not found.max() <= 2 * floor:
        silent(f"the rotary table is {found.max():.3f} off at position {found.argmax()}")


@pytest.mark.reproduces("rope-buffer-cast")
@pytest.mark.parametrize("cast", CASTS)
def test_cast(tiny_qwen, cast):
    with act():
        check_table(tiny_qwen, CASTS[cast](tiny_qwen.model()))


@pytest.mark.guards("rope-buffer-cast")
@pytest.mark.parametrize("dtype", DTYPES)
def test_table_stays_exact(subject, tiny_qwen, dtype):
    with act():
        check_table(tiny_qwen, subject(tiny_qwen.model(), _dtype(dtype)))


@pytest.mark.guards("rope-buffer-cast")
@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_are_cast(subject, tiny_qwen, dtype):
    """Each is rounded once, their gradients with them; tied ones stay tied, buffers are what they were."""
    model, original = tiny_qwen.model(), tiny_qwen.model()
    buffers = dict(model.named_buffers())
    values = {name: buffer.clone() for name, buffer in buffers.items()}
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    with act():
        assert subject(model, _dtype(dtype)) is model
    for (name, found), wanted in zip(model.named_parameters(), original.parameters(), strict=True):
        assert found.dtype == _dtype(dtype), name
        assert found.equal(wanted.to(found.dtype)), f"{name} is another than rounded"
        assert found.grad.equal(found), f"the gradient of {name}"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    found = dict(model.named_buffers())
    assert found.keys() == buffers.keys()
    assert all(found[name] is buffers[name] and found[name].equal(values[name]) for name in buffers)
    logits = model(input_ids=torch.tensor([[11, 12, 13]])).logits
    assert logits.dtype == _dtype(dtype)
    assert logits.isfinite().all()
