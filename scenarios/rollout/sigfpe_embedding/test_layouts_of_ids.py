"""Ids of any layout mean the same, bit for bit: to transformers' model, to the engine's and on verl's way to both."""

import asyncio
from types import SimpleNamespace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.lazy import torch

VIEWS = {  # of a padded batch of ids, [4, 12]
    "columns": lambda ids: ids[:, 3:11],
    "every-second-row": lambda ids: ids[::2],
    "transposed": lambda ids: ids.t().contiguous().t(),
    "expanded": lambda ids: ids[:1].expand(4, -1),
    "int32": lambda ids: ids.int()[:, 3:11],
}
EVERY_VIEW = pytest.mark.parametrize("view", VIEWS)


def draw_ids(view, device="cpu"):
    """Return ids in one of the layouts, and the same ids as a contiguous tensor of int64."""
    ids = VIEWS[view](torch.arange(500, 548, device=device).view(4, 12))
    assert not ids.is_contiguous()
    return ids, torch.tensor(ids.tolist(), device=device)


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
    """The embedding moves the table's rows as they are, and the LM head makes the same logits of them."""
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

    assert LLM.apply_model(vllm_engine.llm, run) == [(True, True)], "(rows, logits) as those of the same ids"


def make_batch(ids):
    """Return verl's batch of these ids, a row of its mask for all, and positions that are columns of wider ones."""
    from verl import DataProto

    count, width = ids.shape
    mask = torch.ones(width, dtype=torch.long)
    mask[0] = 0  # padding on the left
    mask = mask.expand(count, -1)
    positions = torch.arange(-1, 2 * width - 1).clamp(min=0).expand(count, -1)[:, :width]
    tensors = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    return DataProto.from_dict({**tensors, "response_mask": mask[:, width // 2 :]})


def prepare(ids, *, packed):
    """Return what verl's FSDP engine feeds its model with; of the engine only its settings are there."""
    from verl.utils import tensordict_utils
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.utils.padding import left_right_2_no_padding

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
    assert inputs["input_ids"].flatten().tolist() == contiguous[:, 1:].flatten().tolist()[: inputs["input_ids"].numel()]
    with torch.inference_mode():
        logits, expected = (
            model(**{name: to_device(value, model.device) for name, value in given.items()}).logits
            for given in (inputs, wanted)
        )
    assert logits.equal(expected)


def to_device(value, device):
    return value.to(device) if isinstance(value, torch.Tensor) else value


def send_to_engine(ids):
    """Return the prompt that verl's server hands to vLLM; of the server only what it asks of itself is there."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    prompts = []

    class Engine:
        async def generate(self, prompt, **options):
            prompts.append(prompt)
            yield SimpleNamespace(outputs=[])

    server = object.__new__(vLLMHttpServer)
    config = {"max_model_len": 128, "prompt_length": 64, "response_length": 16, "full_determinism": False}
    server.config = Config(config)
    server.model_config = SimpleNamespace(processor=None)
    server.engine, server.lora_as_adapter, server._disaggregation_role = Engine(), False, "null"
    server._submission_paused, server._admitting = False, 0
    server.replica_rank, server.global_steps = 0, 0
    asyncio.run(vLLMHttpServer.generate(server, ids, {"max_tokens": 1}, "request"))
    return prompts[0]["prompt_token_ids"]


class Config(dict):
    """A mapping whose values are attributes, too."""

    __getattr__ = dict.__getitem__


@EVERY_VIEW
@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("verl", "vllm")
def test_verl_sends_integers(view):
    ids, contiguous = draw_ids(view)
    expected = contiguous[0].tolist()
    assert send_to_engine(expected) == expected, "of a list this release makes the same list"
    with act():
        sent = send_to_engine(ids[0])
    assert type(sent) is list
    assert sent == expected
    assert {type(token) for token in sent} == {int}
