"""Broken remedies of prefix-cache-stale-weights, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant

SCENARIO = "pytest_rlregress.scenarios.weight_sync.prefix_cache_stale_weights.test_prefix_cache_stale_weights"


@broken(only="test_every_update")
def first_update_only(llm):
    if not hasattr(llm, "was_reset"):
        llm.was_reset = True
        llm.reset_prefix_cache(reset_running_requests=True)


@broken(only="test_a_running_request")
def reset_is_refused(llm):
    llm.reset_prefix_cache()


@mutant("absent")
def update_resets_the_cache(monkeypatch):
    """https://github.com/vllm-project/vllm/pull/46125 took it back."""
    from vllm import LLM

    call = LLM.collective_rpc

    def collective_rpc(self, method, *args, **options):
        results = call(self, method, *args, **options)
        if method == "reload_weights":
            self.llm_engine.reset_prefix_cache(reset_running_requests=True)
        return results

    monkeypatch.setattr(LLM, "collective_rpc", collective_rpc)


@mutant("changed", only="test_no_reset")
def update_fails_otherwise(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIO}.reload_by_worker",
        failing(RuntimeError("EngineCore encountered an issue")),
    )
