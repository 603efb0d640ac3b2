"""TRL holds a completion for cut short unless its last id is an end it knows; the engine said that it had stopped."""

from __future__ import annotations

import pytest

TURNS, TOKENS = 64, 48
ENDINGS = ["<|im_end|>", "<|endoftext|>", "</tool_call>"]


@pytest.fixture(scope="module")
def sampled(vllm_engine, tiny_qwen):
    """Completions of a random policy that may end in three ways: with either eos, or asked for, at a tool call.

    Ended by the generation config's two and a stop id of the request, as the engine's own ``finish_reason`` tells.
    """
    tokenizer = tiny_qwen.tokenizer()
    ends = tokenizer.convert_tokens_to_ids(ENDINGS)
    biased = {token: 6.0 for token in ends}  # so that a model that knows nothing stops within a few tokens
    prompt = tokenizer.encode("How big is Lisbon?")
    return vllm_engine.generate([prompt] * TURNS, 8, seed=0, stop_token_ids=ends, logit_bias=biased)


def test_nothing(): ...
