"""Mutants of scenarios/weight_sync."""

from __future__ import annotations

from mutants import broken, mutant

SCENARIOS = "pytest_rlregress.scenarios.weight_sync"


def failing(error):
    def function(*args, **options):
        raise error

    return function


@broken("prefix-cache-stale-weights", only="test_every_update")
def nothing_is_reset(llm):
    pass


@broken("prefix-cache-stale-weights", only="test_every_update")
def first_update_only(llm):
    if not hasattr(llm, "was_reset"):
        llm.was_reset = True
        llm.reset_prefix_cache(reset_running_requests=True)


@broken("prefix-cache-stale-weights", only="test_a_running_request")
def reset_is_refused(llm):
    llm.reset_prefix_cache()


@broken("prefix-cache-stale-weights", only="test_a_running_request")
def running_requests_are_aborted(llm):
    llm.llm_engine.abort_request(["0"])
    llm.reset_prefix_cache()


@broken("prefix-cache-stale-weights", only="test_a_refusal")
def refusal_is_not_looked_at(llm):
    llm.reset_prefix_cache(reset_running_requests=True)


@mutant("prefix-cache-stale-weights", "absent")
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


@mutant("prefix-cache-stale-weights", "changed", only="test_no_reset")
def update_fails_otherwise(monkeypatch):
    monkeypatch.setattr(
        f"{SCENARIOS}.test_prefix_cache_stale_weights.reload_by_worker",
        failing(RuntimeError("EngineCore encountered an issue")),
    )
