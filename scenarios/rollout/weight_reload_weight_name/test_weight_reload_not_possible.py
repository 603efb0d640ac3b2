"""A vLLM that takes no new weights says so, and keeps those that it has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_rlregress.scenarios.rollout.weight_reload_weight_name.new_weights import SEQUENCES, after_an_update
from pytest_rlregress.stack import InterfaceMissing


@pytest.mark.guards("weight-reload-weight-name", fidelity="stand-in")
def test_a_worker_without_the_argument(vllm_engine, subject, tiny_qwen, monkeypatch):
    """As vLLM 0.13's answers."""
    before = vllm_engine.logprobs(SEQUENCES)

    def refuse(method, *args, **kwargs):
        raise TypeError(f"Worker.{method}() got an unexpected keyword argument 'weights_iterator'")

    with monkeypatch.context() as patched:
        patched.setattr(vllm_engine.llm, "collective_rpc", refuse)
        with pytest.raises(InterfaceMissing, match="reload_weights"):
            subject(vllm_engine.llm, after_an_update(tiny_qwen.model()).named_parameters())
    assert vllm_engine.logprobs(SEQUENCES) == before


@pytest.mark.guards("weight-reload-weight-name", fidelity="stand-in")
@pytest.mark.needs("vllm")
def test_a_gpt_oss_that_loads_no_single_expert(subject, tiny_model, monkeypatch):
    """As a vLLM without the class does not; it is refused before the engine is asked for anything."""
    from transformers import AutoConfig
    from vllm.model_executor.models import gpt_oss

    config = AutoConfig.from_pretrained(tiny_model("gpt-oss").directory)
    monkeypatch.delattr(gpt_oss, "GptOssRoutedExperts", raising=False)
    with pytest.raises(InterfaceMissing, match="GptOssRoutedExperts"):
        subject(SimpleNamespace(model_config=SimpleNamespace(hf_config=config)), [])
