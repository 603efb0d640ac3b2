"""Engines on the sharp Qwen, one for each way of sampling; each lives in a child of its own (``isolated(group=…)``)."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def trainer(sharp_qwen):
    """The trainer's model, float32, of the engines' own weights."""
    return sharp_qwen.model()


@pytest.fixture(scope="session")
def raw_engine(sharp_qwen, progress):
    """An engine whose log-probabilities are as vLLM gives them by default."""
    from pytest_rlregress.fixtures import vllm_engine

    with vllm_engine.start(sharp_qwen.directory, say=progress) as engine:
        yield engine


@pytest.fixture(scope="session")
def processed_engine(sharp_qwen, progress):
    """An engine whose log-probabilities are to be those of the distribution that it samples from."""
    from pytest_rlregress.fixtures import vllm_engine

    with vllm_engine.start(sharp_qwen.directory, say=progress, logprobs_mode="processed_logprobs") as engine:
        yield engine
