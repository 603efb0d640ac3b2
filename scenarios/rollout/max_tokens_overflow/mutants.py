"""Broken remedies of max-tokens-overflow, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.rollout import clamp_max_tokens


@broken(only="test_arithmetic")
def one_too_many(max_tokens, prompt_length, max_model_len):
    return clamp_max_tokens(max_tokens, prompt_length - 1, max_model_len)


@broken(only="test_arithmetic")
def one_too_few(max_tokens, prompt_length, max_model_len):
    return min(max_tokens, max_model_len - prompt_length - 1)


@mutant("absent", only="test_offline_cuts_short")
def offline_gives_all(monkeypatch):
    """Whatever its context holds: one token, as often as was asked for."""
    from vllm import LLM, SamplingParams

    real = LLM.generate

    def generate(self, prompts, params, **options):
        outputs = real(self, prompts, SamplingParams(max_tokens=1, logprobs=0, detokenize=False), **options)
        for output, asked in zip(outputs, params, strict=True):
            answer = output.outputs[0]
            answer.token_ids = list(answer.token_ids) * asked.max_tokens
            answer.logprobs = list(answer.logprobs) * asked.max_tokens
        return outputs

    monkeypatch.setattr(LLM, "generate", generate)


@mutant("changed", only="test_offline_cuts_short")
def offline_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))
