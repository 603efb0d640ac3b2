"""Broken remedies of trl-colocate-load-weights, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant
from pytest_rlregress.remedies.rollout import reload_by_worker, reload_weights

SCENARIO = "pytest_rlregress.scenarios.weight_sync.trl_colocate_load_weights.test_trl_colocate_load_weights"


@broken()
def without_the_tied_head(llm, weights):
    reload_by_worker(llm, weights)
    llm.reset_prefix_cache()


@broken()
def nothing_is_sent(llm, weights):
    llm.reset_prefix_cache()


@mutant("absent")
def sync_takes_the_weights(monkeypatch):
    """TRL sends them as it should, and a sync of its names brings the tied head, too."""
    monkeypatch.setattr(
        "trl.generation.vllm_generation.VLLMGeneration.sync_weights",
        lambda self: reload_weights(self.llm, self.model.named_parameters()),
    )
    monkeypatch.setattr(f"{SCENARIO}.reload_by_worker", reload_weights)


@mutant("changed", only="test_sync_as_released")
def sync_fails_otherwise(monkeypatch):
    monkeypatch.setattr(
        "trl.generation.vllm_generation.VLLMGeneration.sync_weights",
        failing(RuntimeError("The size of tensor a (384) must match the size of tensor b (128)")),
    )
