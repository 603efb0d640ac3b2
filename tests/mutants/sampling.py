"""Mutants of scenarios/sampling."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.sampling import sampled_logprobs


def failing(error):
    def function(*args, **options):
        raise error

    return function


def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def temperature_left_out(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0)


@broken("sampling-logprobs-temperature", only="test_processed")
def logprobs_divided(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0) / temperature


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def computed_in_bfloat16(logits, ids, temperature):
    return sampled_logprobs((logits / temperature).log_softmax(-1).exp().log(), ids, 1.0)


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def logits_divided_in_place(logits, ids, temperature):
    logits.detach().div_(temperature)
    return sampled_logprobs(logits, ids, 1.0)


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def without_gradient(logits, ids, temperature):
    return sampled_logprobs(logits.detach(), ids, temperature).requires_grad_()


@broken("sampling-logprobs-temperature", only="test_no_temperature")
def greedy_as_1(logits, ids, temperature):
    return sampled_logprobs(logits, ids, temperature if temperature > 0 else 1.0)


@broken("sampling-logprobs-temperature", only="test_shapes_that")
def cut_to_the_ids(logits, ids, temperature):
    return sampled_logprobs(logits[..., : ids.shape[-1], :].expand(*ids.shape, -1), ids, temperature)


@mutant("sampling-logprobs-temperature", "absent", only="0.5")
def default_is_processed(monkeypatch):
    from vllm.v1.sample.sampler import Sampler

    forward = Sampler.forward

    def processed(self, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(self, "logprobs_mode", "processed_logprobs")
            patch.setattr(self.topk_topp_sampler, "logprobs_mode", "processed_logprobs")
            return forward(self, *args, **options)

    monkeypatch.setattr(Sampler, "forward", processed)


@mutant("sampling-logprobs-temperature", "changed", only="0.5")
def engine_dies(monkeypatch):
    engine_fails_otherwise(monkeypatch)


@mutant("sampling-logprobs-temperature", "changed", only="0.5")
def temperature_applied_twice(monkeypatch):
    """Log-probabilities of neither temperature are another failure."""
    from vllm.v1.sample.sampler import Sampler

    compute = Sampler.compute_logprobs
    monkeypatch.setattr(Sampler, "compute_logprobs", staticmethod(lambda logits: compute(logits * 4)))
