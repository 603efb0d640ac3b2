"""Padded on the left, a model with learnt positions counts the padding: forward makes no positions of the mask."""

from __future__ import annotations

import pytest

from pytest_rlregress.agreement import logprobs

PROMPTS = [[(start * 91 + step * 37) % 250 + 5 for step in range(6 + 5 * start)] for start in range(3)]
# Beyond the floor: a padded row is longer, its sums are in another order.
FACTOR = 10
PADDING = 0
SIZES = {"vocab_size": 256, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64}
GPT_NEO = {
    "hidden_size": 64, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64,
    "attention_types": [[["global"], 2]],
}  # fmt: skip
QWEN2 = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2,
}  # fmt: skip
LEARNT = {"gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2), "gpt-neo": ("GPTNeoConfig", "GPTNeoForCausalLM", GPT_NEO)}
ROTARY = {"qwen2": ("Qwen2Config", "Qwen2ForCausalLM", QWEN2)}


@pytest.fixture(scope="module")
def model(request):
    """A model of two layers with weights of four times the size, so that another position shows."""
    import torch
    import transformers

    config, name, sizes = {**LEARNT, **ROTARY}[request.param]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**SIZES | sizes)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 4
    return model


def padded(side):
    """The prompts as rows of one length, ``[prompts, tokens]``, and the mask of their tokens."""
    import torch

    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in PROMPTS], batch_first=True, padding_side=side)
    ones = [torch.ones(len(one), dtype=torch.long) for one in PROMPTS]
    return ids, torch.nn.utils.rnn.pad_sequence(ones, batch_first=True, padding_side=side)


def off_alone(model, side="left", **arguments):
    """Mean |difference| in nats to each prompt alone, and the floor of such a comparison."""
    import torch

    ids, mask = padded(side)
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, **arguments).logits.float().log_softmax(-1)
    rows = []
    for row, one, kept in zip(found, ids, mask.bool(), strict=True):
        rows.append(row[kept][:-1].gather(-1, one[kept][1:, None])[:, 0].tolist())
    return logprobs.mean_gap(rows, logprobs.token_logprobs(model, PROMPTS)), logprobs.floor(model, PROMPTS)


@pytest.mark.reproduces("left-padding-positions")
@pytest.mark.parametrize("model", LEARNT, indirect=True)
def test_forward_with_a_mask_alone(model):
    off, floor = off_alone(model)
    assert off <= FACTOR * floor, (
        f"silent: padded on the left, prompts are {off:.2g} nats a token off what each is alone"
    )


@pytest.mark.guards("left-padding-positions")
@pytest.mark.parametrize("model", [*LEARNT, *ROTARY], indirect=True)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_is_as_alone(subject, model, side):
    off, floor = off_alone(model, side, position_ids=subject(padded(side)[1]))
    assert off <= FACTOR * floor


@pytest.mark.guards("left-padding-positions")
@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
def test_positions_count_the_tokens(subject, dtype):
    """Whatever lies between them; what is padding gets a position that a table of that many rows has."""
    import torch

    mask = torch.rand(8, 12, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0], mask[1] = False, True
    mask = mask.to(getattr(torch, dtype))
    before = mask.clone()
    positions = subject(mask)
    assert (positions.shape, positions.dtype) == (mask.shape, torch.int64)
    assert mask.equal(before)
    for row, kept in zip(positions, mask.bool(), strict=True):
        assert row[kept].tolist() == list(range(int(kept.sum())))
        assert ((row >= 0) & (row < len(row))).all()
