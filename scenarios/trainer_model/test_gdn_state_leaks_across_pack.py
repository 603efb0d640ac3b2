"""Recurrent layers know no borders: packed, a sample begins with the state that the one before it left."""

from __future__ import annotations

import contextlib

import pytest

from pytest_rlregress.remedies.trainer_model import packed_logits

SAMPLES = [[(start * 91 + step * 37) % 250 + 5 for step in range(20)] for start in range(2)]
SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
DELTA_NET = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "layer_types": ["linear_attention", "full_attention"], "attention_dropout": 0.1,
}  # fmt: skip
MAMBA = {"mamba_d_ssm": 64, "mamba_n_heads": 2, "mamba_d_head": 32, "mamba_d_state": 16}
# Each with what transformers calls its configuration and its model.
RECURRENT = {
    "qwen3-next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", DELTA_NET | {"mlp_only_layers": [0, 1]}),
    "qwen3.5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", DELTA_NET),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    "falcon-h1": ("FalconH1Config", "FalconH1ForCausalLM", MAMBA),
}
ATTENTION = {
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"attention_dropout": 0.1}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"head_dim": 32, "sliding_window": 8}),
}
# Beyond the rounding that one sample alone shows: a pack is another shape, its sums are in another order.
FACTOR = 10


def built(kind):
    """A model of two layers with weights of four times the size, so that what a sample was not given shows."""
    import torch
    import transformers

    config_name, model_name, sizes = (RECURRENT | ATTENTION)[kind]
    config = getattr(transformers, config_name)(**SIZES | sizes)
    torch.manual_seed(0)
    model = getattr(transformers, model_name)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 4
    return model


def leak(model, logits_of):
    """Of the last sample: mean |difference| in nats to what it is alone, and what rounding explains of that."""
    import torch

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
    """Positions begin anew, no mask, no cache."""
    off, allowed = leak(built(kind), packed_logits)
    assert off <= allowed, f"silent: packed behind another, a sample is {off:.2g} nats off what it is alone"


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

    off, allowed = leak(built(kind), told)
    assert off <= allowed, f"silent: packed behind another, a sample is {off:.2g} nats off what it is alone"


@pytest.mark.guards("gdn-state-leaks-across-pack")
@pytest.mark.parametrize(("kind", "dtype"), [*((kind, "float32") for kind in RECURRENT), ("qwen3-next", "bfloat16")])
def test_refused_where_it_leaks(subject, kind, dtype):
    """It passes where the installed kernels keep the samples apart, and only there; also while dropout is on."""
    import torch

    model = built(kind)
    off, allowed = leak(model, packed_logits)
    model.to(getattr(torch, dtype)).train()
    with contextlib.nullcontext() if off <= allowed else pytest.raises(ValueError, match=type(model).__name__):
        subject(model)


@pytest.mark.guards("gdn-state-leaks-across-pack")
@pytest.mark.parametrize("kind", ATTENTION)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_models_pass(subject, kind, dtype):
    """Also while they are being trained, with dropout: they are left in that mode, without a gradient."""
    import torch

    model = built(kind).to(getattr(torch, dtype)).train()
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
        import torch

        return torch.cat([model(input_ids=one[None], use_cache=False).logits[0] for one in ids.split(lengths)])

    with pytest.raises(ValueError, match="Qwen2ForCausalLM"):
        subject(built("qwen2"), one_long_sample)
    subject(built("qwen3-next"), one_by_one)
