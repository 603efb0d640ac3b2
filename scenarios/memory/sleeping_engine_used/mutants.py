from mutants import fails, replaces

CORE = "vllm.v1.engine.core.EngineCore"
EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


@replaces("reproduced", f"{CORE}.sleep", only="test_request_meets_a_sleeper[running")
def sleeps_and_schedules_on(core, level=1, mode="abort"):
    """As vLLM before 0.17."""
    core.model_executor.sleep(level)


@replaces("reproduced", f"{CORE}.wake_up", only="test_request_meets_a_sleeper[weights-awake")
def resumes_with_any_part(original, core, tags=None):
    """As vLLM before 0.24."""
    awake = original(core, tags)
    core.resume_scheduler()
    return awake


@replaces("absent", f"{EXECUTOR}.collective_rpc", only="test_update_sent_to_a_sleeper")
def refuses_weights_asleep(original, executor, method, *arguments, **options):
    if method == "reload_weights" and "weights" in executor.sleeping_tags:
        raise RuntimeError("the engine's weights sleep: wake_up(tags=['weights']) first")
    return original(executor, method, *arguments, **options)


replaces("changed", f"{CORE}.sleep", only="test_request_meets_a_sleeper[asleep")(fails)


@replaces("regressed", "vllm.v1.worker.cpu_worker.CPUWorker.wake_up", only="test_update_in_order")
def loses_what_was_sent(worker, tags=None):
    """As a level 2 would, by which the KV cache were woken with memory of the weights."""
    if tags == ["kv_cache"]:
        for parameter in worker.model_runner.model.parameters():
            parameter.data.zero_()


@replaces("regressed", "trl.generation.vllm_generation.VLLMGeneration.sync_weights", only="test_trl_wakes")
def sends_before_it_wakes(original, generation):
    """As TRL before huggingface/trl#5142 was repaired."""
    generation.enable_sleep_mode = False
    original(generation)
    generation.enable_sleep_mode = True
    generation.llm.wake_up(tags=["weights"])
