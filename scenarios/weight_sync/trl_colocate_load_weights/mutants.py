from mutants import broken, failing, replaces
from pytest_rlregress.remedies.rollout import reload_by_worker, reload_weights


@broken()
def without_the_tied_head(llm, weights):
    reload_by_worker(llm, weights)
    llm.reset_prefix_cache()


@broken()
def nothing_is_sent(llm, weights):
    llm.reset_prefix_cache()


# TRL sends them as it should.
replaces("absent", "trl.generation.vllm_generation.VLLMGeneration.sync_weights", only="test_sync_as_released")(
    lambda self: reload_weights(self.llm, self.model.named_parameters())
)
replaces("changed", "trl.generation.vllm_generation.VLLMGeneration.sync_weights", only="test_sync_as_released")(
    failing(RuntimeError("The size of tensor a (384) must match the size of tensor b (128)"))
)
