from mutants import broken, failing, replaces


@broken(only="test_every_update")
def first_update_only(llm):
    if not hasattr(llm, "was_reset"):
        llm.was_reset = True
        llm.reset_prefix_cache(reset_running_requests=True)


@broken(only="test_a_running_request")
def reset_is_refused(llm):
    llm.reset_prefix_cache()


@replaces("absent", "vllm.LLM.collective_rpc")
def update_resets_the_cache(original, self, method, *args, **options):
    """https://github.com/vllm-project/vllm/pull/46125 took it back."""
    results = original(self, method, *args, **options)
    if method == "reload_weights":
        self.llm_engine.reset_prefix_cache(reset_running_requests=True)
    return results


replaces("changed", ".test_prefix_cache_stale_weights.reload_by_worker", only="test_no_reset")(
    failing(RuntimeError("EngineCore encountered an issue"))
)
