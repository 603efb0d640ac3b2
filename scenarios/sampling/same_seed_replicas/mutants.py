"""Broken remedies of same-seed-replicas, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.sampling import request_seed


def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken(only="test_far_apart")
def running_number(seed, *place):
    """One up with each copy: the n completions of a request have the seeds of the next ones."""
    return seed + sum(number * 100**index for index, number in enumerate(reversed(place)))


@broken(only="test_replicas_with")
def step_and_copy_alone(seed, *place):
    return request_seed(seed, place[0], place[-1])


@mutant("absent", only="test_copies")
def copies_get_seeds_of_their_own(monkeypatch):
    from vllm import LLM

    generate = LLM.generate

    def spread(self, prompts, params, **options):
        for index, one in enumerate(params):
            one.seed += index
        return generate(self, prompts, params, **options)

    monkeypatch.setattr(LLM, "generate", spread)


@mutant("changed", only="test_copies")
def engine_dies_of_a_seed(monkeypatch):
    engine_fails_otherwise(monkeypatch)
