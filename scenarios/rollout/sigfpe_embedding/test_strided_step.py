"""A step on a batch that is strided wherever it can be trains to the same numbers."""

import hashlib
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.rollout.sigfpe_embedding import layouts
from pytest_rlregress.stack.lazy import torch

LAYOUTS = {
    "prompts": layouts.transpose,
    "responses": layouts.transpose,
    "input_ids": layouts.transpose,
    "attention_mask": layouts.expand,
    "response_mask": layouts.expand,
    "position_ids": layouts.slice_columns,
    "rollout_log_probs": layouts.slice_columns,
    "rewards": layouts.skip_rows,
    "advantages": layouts.skip_rows,
}


@pytest.fixture
def settings(hardware):
    from pytest_rlregress.fixtures.step_settings import StepSettings

    return replace(StepSettings.of(hardware), prompts=1, samples_per_prompt=8, prompt_kind="random")


@pytest.fixture
def batch(settings, vllm_engine, tiny_qwen):
    """Completions of one prompt, equally long and padded: one row of a mask can stand for all."""
    from pytest_rlregress.fixtures.tiny_qwen import VARIANTS
    from pytest_rlregress.fixtures.training_step import roll_out
    from pytest_rlregress.fixtures.vllm_engine import seed_sampling

    def generate(prompts, seed, max_tokens, n, stop_token_ids):
        seed_sampling(seed)
        return vllm_engine.generate(prompts, max_tokens - 4, n=n, ignore_eos=True)

    rows = VARIANTS[tiny_qwen.variant]["vocab_size"]
    tokenizer = tiny_qwen.tokenizer()
    return roll_out(generate, settings, tokenizer, rows, 0, hashlib.sha256()).batch


@contextmanager
def computed_alike():
    """Have torch sum in one order: of attention and of the rest the implementations that do so."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    threads, before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)


def train(tiny_qwen, batch, settings, lay_out_positions=lambda positions: positions):
    """Train a fresh model for two passes; return what they gave, its weights, strides it saw."""
    from pytest_rlregress.fixtures.training_step import train_on

    model = tiny_qwen.model("float32").to(batch.device).train()
    seen = []

    def look(module, arguments, named):
        seen.append([tensor.stride() for tensor in arguments])
        return arguments, {**named, "position_ids": lay_out_positions(named["position_ids"])}

    model.register_forward_pre_hook(look, with_kwargs=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)
    passes = [train_on(model, optimizer, batch, settings) for _ in range(2)]
    return passes, model.state_dict(), seen


@pytest.mark.guards("sigfpe-embedding")
def test_strided_batch_trains_alike(tiny_qwen, batch, settings):
    from tensordict import TensorDict

    device = "cuda" if torch.cuda.is_available() else "cpu"
    contiguous = batch.to(device)
    strided = TensorDict(
        {name: lay_out(contiguous[name]) for name, lay_out in LAYOUTS.items()},
        batch_size=batch.batch_size,
        device=device,
    )
    assert set(contiguous.keys()) == LAYOUTS.keys(), "every tensor of the batch has its layout"
    assert not any(strided[name].is_contiguous() for name in LAYOUTS)
    with computed_alike():
        expected, wanted, _ = train(tiny_qwen, contiguous, settings)
        with act():
            passes, weights, strides = train(tiny_qwen, strided, settings, layouts.slice_columns)
    assert strides == [[(1, len(batch)), (0, 1)]] * 2, "of ids and mask, as the model got them"
    for made, same in zip(passes, expected, strict=True):
        loss, norm, logprobs = made
        assert norm > 0
        assert (loss, norm) == same[:2]
        assert logprobs.equal(same[2])
    assert [name for name in weights if not weights[name].equal(wanted[name])] == []
