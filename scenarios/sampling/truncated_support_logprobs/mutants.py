"""Broken remedies of truncated-support-logprobs, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.sampling import sampled_logprobs


def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken(only="test_what_is_left")
def of_everything(logits, ids, temperature, **truncation):
    return sampled_logprobs(logits, ids, temperature)


@broken(only="at_the_border")
def rounding_decides(logits, ids, temperature, top_k=0, **truncation):
    kept = logits >= logits.topk(top_k).values[..., -1:]
    return sampled_logprobs(logits.masked_fill(~kept, -float("inf")), ids, temperature)


@mutant("absent", only="top_k")
def processed_are_of_everything(monkeypatch):
    from vllm.v1.sample.sampler import Sampler

    real = Sampler.sample

    def of_the_whole_vocabulary(self, logits, metadata, *others):
        logprobs = (logits / metadata.temperature[:, None]).log_softmax(-1)
        return real(self, logits, metadata, *others)[0], logprobs

    monkeypatch.setattr(Sampler, "sample", of_the_whole_vocabulary)


@mutant("changed", only="top_k")
def engine_dies_of_top_k(monkeypatch):
    engine_fails_otherwise(monkeypatch)
