"""A miniature step on a batch that is strided wherever it can be trains to the numbers of the contiguous one."""

import hashlib
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.lazy import torch


def transpose(tensor):
    """Return the tensor laid out by columns."""
    return tensor.t().contiguous().t()


def expand(tensor):
    """Return a tensor whose rows are all alike as one row for all of them."""
    assert tensor.equal(tensor[:1].expand(len(tensor), -1))
    return tensor[:1].clone().expand(len(tensor), -1)


def slice_columns(tensor):
    """Return the tensor as columns of a wider one, with other numbers around it."""
    other = torch.full_like(tensor, 7)
    return torch.cat([other, tensor, other], dim=1)[:, tensor.shape[1] : 2 * tensor.shape[1]]


def skip_rows(tensor):
    """Return the tensor as every second row of a longer one, with other numbers in between."""
    return torch.stack([tensor, torch.full_like(tensor, 7)], dim=1).flatten(0, 1)[::2]


LAYOUTS = {
    "prompts": transpose,
    "responses": transpose,
    "input_ids": transpose,
    "attention_mask": expand,
    "response_mask": expand,
    "position_ids": slice_columns,
    "rollout_log_probs": slice_columns,
    "rewards": skip_rows,
    "advantages": skip_rows,
}


@pytest.fixture
def settings(hardware):
    from pytest_rlregress.fixtures.step_settings import StepSettings

    return replace(StepSettings.of(hardware), prompts=1, samples_per_prompt=8, prompt_kind="random")


@pytest.fixture
def batch(settings, vllm_engine, tiny_qwen):
    """Completions of one prompt, equally long, so that one row of a mask can stand for all; padded on the right."""
    from pytest_rlregress.fixtures.training_step import roll_out
    from pytest_rlregress.fixtures.vllm_engine import seed_sampling

    def generate(prompts, seed, max_tokens, n, stop_token_ids):
        seed_sampling(seed)
        return vllm_engine.generate(prompts, max_tokens - 4, n=n, ignore_eos=True)

    rollout = roll_out(generate, settings, tiny_qwen.tokenizer(), 1024, 0, hashlib.sha256())
    return rollout.batch


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


def train(tiny_qwen, batch, settings, lay_out_positions):
    """Train a fresh model for two passes over a batch; return losses, norms, log-probabilities and weights."""
    from pytest_rlregress.fixtures.training_step import train_on

    model = tiny_qwen.model("float32").to(batch.device).train()
    seen = []

    def look(module, arguments, named):
        positions = lay_out_positions(named["position_ids"])
        seen.append([tensor.stride() for tensor in (*arguments, positions)])
        return arguments, {**named, "position_ids": positions}

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
        {name: lay_out(contiguous[name]) for name, lay_out in LAYOUTS.items()}, batch_size=batch.batch_size, device=device
    )
    assert set(contiguous.keys()) == LAYOUTS.keys(), "every tensor of the batch has its layout"
    assert not any(strided[name].is_contiguous() for name in LAYOUTS)
    with computed_alike():
        expected, expected_weights, _ = train(tiny_qwen, contiguous, settings, lambda positions: positions)
        with act():
            passes, weights, strides = train(tiny_qwen, strided, settings, slice_columns)
    print(strides)
    for (loss, norm, logprobs), (expected_loss, expected_norm, expected_logprobs) in zip(passes, expected, strict=True):
        assert expected_norm > 0
        assert (loss, norm) == (expected_loss, expected_norm)
        assert logprobs.equal(expected_logprobs)
    assert [name for name in weights if not weights[name].equal(expected_weights[name])] == []
