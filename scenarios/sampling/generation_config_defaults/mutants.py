"""Broken remedies of generation-config-defaults, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.sampling import explicit_sampling


def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken(only="chosen_arrives")
def only_what_was_chosen(max_tokens, **chosen):
    return {"max_tokens": max_tokens, **chosen}


@broken(only="trainers_policy")
def what_openai_knows(max_tokens, **chosen):
    """top_k, min_p and repetition_penalty are vLLM's own."""
    own = ("top_k", "min_p", "repetition_penalty")
    return {
        name: value
        for name, value in explicit_sampling(max_tokens, **chosen).items()
        if name not in own or name in chosen
    }


@mutant("absent", only="server")
def nothing_is_filled(monkeypatch):
    monkeypatch.setattr("vllm.config.ModelConfig.get_diff_sampling_param", lambda self: {})


@mutant("changed", only="server")
def engine_dies_of_a_default(monkeypatch):
    engine_fails_otherwise(monkeypatch)
