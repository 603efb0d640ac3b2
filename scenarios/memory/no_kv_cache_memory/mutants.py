from mutants import failing, replaces


@replaces("absent", "vllm.v1.core.kv_cache_utils._check_enough_kv_cache_memory", only="own-maximum")
def starts_with_the_room_there_is(*arguments, **options):
    """A stack that takes what remains, and cuts what is too long later."""


replaces("changed", "vllm.engine.arg_utils.EngineArgs.create_engine_config", only="own-maximum")(
    failing(RuntimeError("the model's length is not known"))
)


@replaces("regressed", "vllm.engine.arg_utils.EngineArgs.create_model_config", only="test_length_of")
def takes_the_models_length(original, arguments):
    arguments.max_model_len = None
    return original(arguments)


@replaces(
    "regressed",
    "trl.generation.vllm_generation.VLLMGeneration.__init__",
    only="test_trl_engine_by_its_key",
)
def loses_the_key(original, generation, *arguments, **options):
    original(generation, *arguments, **{**options, "max_model_length": None})
