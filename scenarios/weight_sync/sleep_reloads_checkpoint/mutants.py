from mutants import fails, replaces

GENERATION = "trl.generation.vllm_generation.VLLMGeneration"


@replaces("returned", f"{GENERATION}.generate", only="test_sleep_mode")
def reloads_as_it_wakes(original, generation, *arguments, **options):
    """As TRL 0.26 to 1.9."""
    generation._llm_weights_sleeping = False
    generation.llm.wake_up(tags=["weights"])
    generation.llm.collective_rpc("reload_weights")
    return original(generation, *arguments, **options)


replaces("changed", f"{GENERATION}.generate", only="test_sleep_mode")(fails)


@replaces("regressed", f"{GENERATION}.sync_weights", only="test_without_sleep_mode")
def sends_nothing(generation):
    generation.llm.reset_prefix_cache()
