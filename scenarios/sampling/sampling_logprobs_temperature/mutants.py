"""Broken remedies of sampling-logprobs-temperature, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.sampling import sampled_logprobs


def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken(only="test_as_in_float64")
def temperature_left_out(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0)


@broken(only="test_processed")
def logprobs_divided(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0) / temperature


@mutant("absent", only="0.5")
def default_is_processed(monkeypatch):
    from vllm.v1.sample.sampler import Sampler

    forward = Sampler.forward

    def processed(self, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(self, "logprobs_mode", "processed_logprobs")
            patch.setattr(self.topk_topp_sampler, "logprobs_mode", "processed_logprobs")
            return forward(self, *args, **options)

    monkeypatch.setattr(Sampler, "forward", processed)


@mutant("changed", only="0.5")
def engine_dies(monkeypatch):
    engine_fails_otherwise(monkeypatch)
