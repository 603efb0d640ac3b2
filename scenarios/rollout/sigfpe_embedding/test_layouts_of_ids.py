"""Ids of any layout mean the same, bit for bit: to transformers' model, vLLM's and verl's."""

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures.verl_padding import load_padding
from pytest_rlregress.scenarios.rollout.sigfpe_embedding.layouts import VIEWS, draw_ids
from pytest_rlregress.stack.lazy import torch

EVERY_VIEW = pytest.mark.parametrize("view", VIEWS)


@EVERY_VIEW
@pytest.mark.guards("sigfpe-embedding")
def test_transformers_model(hf_runner, view):
    model = hf_runner().model
    ids, contiguous = draw_ids(view, model.device)
    with torch.inference_mode():
        expected = model(input_ids=contiguous).logits
        with act():
            logits = model(input_ids=ids).logits
    assert logits.equal(expected)


@EVERY_VIEW
@pytest.mark.guards("sigfpe-embedding")
def test_engine_model(vllm_engine, view):
    """The embedding gives the table's rows as they are, and the LM head the same logits."""
    from vllm import LLM

    def run(model):
        weight = model.model.embed_tokens.weight
        ids, contiguous = draw_ids(view, weight.device)
        with torch.inference_mode():
            rows = torch.stack([weight[token] for token in contiguous.flatten().tolist()])
            expected = model.compute_logits(model.model.embed_tokens(contiguous.flatten()))
            with act():
                hidden = model.model.embed_tokens(ids).flatten(0, 1)
                logits = model.compute_logits(hidden)
        return hidden.equal(rows), logits.equal(expected)

    found = LLM.apply_model(vllm_engine.llm, run)
    assert found == [(True, True)], "(embedding, logits) equal to those of the contiguous ids"


def make_batch(ids):
    """Return verl's batch of these ids; its mask is one row for all, its positions are columns."""
    from verl import DataProto

    count, width = ids.shape
    mask = torch.ones(width, dtype=torch.long)
    mask[0] = 0  # padding on the left
    mask = mask.expand(count, -1)
    positions = torch.arange(-1, 2 * width - 1).clamp(min=0).expand(count, -1)[:, :width]
    tensors = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    return DataProto.from_dict({**tensors, "response_mask": mask[:, width // 2 :]})


def prepare(ids, *, packed):
    """Return what verl's FSDP engine feeds its model with; of the engine its settings are there."""
    from verl.utils import tensordict_utils
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    left_right_2_no_padding = load_padding().left_right_2_no_padding
    engine = object.__new__(FSDPEngineWithLMHead)
    engine.pad_to_length = engine.use_ulysses_sp = False
    batch = left_right_2_no_padding(make_batch(ids).to_tensordict())
    tensordict_utils.assign_non_tensor(batch, temperature=1.0, use_remove_padding=packed)
    inputs, _ = FSDPEngineWithLMHead.prepare_model_inputs(engine, batch)
    return inputs


@EVERY_VIEW
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("verl")
def test_verl_feeds_its_model(hf_runner, view, packed):
    model = hf_runner().model
    ids, contiguous = draw_ids(view)
    assert make_batch(ids).batch["input_ids"].stride() == ids.stride(), "DataProto keeps the layout"
    wanted = prepare(contiguous, packed=packed)
    with act():
        inputs = prepare(ids, packed=packed)
    assert inputs["input_ids"].is_contiguous()
    assert inputs["input_ids"].flatten().tolist() == contiguous[:, 1:].flatten().tolist()
    with torch.inference_mode():
        logits, expected = (
            model(**{name: to_device(value, model.device) for name, value in given.items()}).logits
            for given in (inputs, wanted)
        )
    assert logits.equal(expected)


def to_device(value, device):
    return value.to(device) if isinstance(value, torch.Tensor) else value
