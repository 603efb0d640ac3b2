from mutants import broken, failing, replaces
from pytest_rlregress.remedies.sampling import explicit_sampling


@broken(only="chosen_arrives")
def only_what_was_chosen(max_tokens, **chosen):
    return {"max_tokens": max_tokens, **chosen}


@broken(only="trainers_policy")
def what_openai_knows(max_tokens, **chosen):
    """top_k, min_p and repetition_penalty are vLLM's own."""
    own = ("top_k", "min_p", "repetition_penalty")
    return {
        name: value
        for name, value in explicit_sampling(max_tokens, **chosen).items()
        if name not in own or name in chosen
    }


replaces("absent", "vllm.config.ModelConfig.get_diff_sampling_param", only="server")(lambda self: {})
replaces("changed", "vllm.LLM.generate", only="server")(failing(RuntimeError("EngineCore encountered an issue")))
