from mutants import broken, failing, replaces


@broken(only="test_only_what_has_text")
def all_that_the_model_has(tokenizer, model_vocabulary):
    return list(range(model_vocabulary))


@broken(only="test_ids_without")
def as_many_as_the_tokenizer_has(tokenizer, model_vocabulary):
    return list(range(min(len(tokenizer), model_vocabulary)))


@replaces("absent", "vllm.model_executor.models.qwen2.Qwen2ForCausalLM.compute_logits", only="test_two_turns")
def logits_of_the_padding_are_masked(original, self, *args, **options):
    logits = original(self, *args, **options)
    logits[..., 900:] = -float("inf")
    return logits


replaces("changed", "vllm.LLM.generate", only="test_two_turns")(
    failing(RuntimeError("EngineCore encountered an issue"))
)


@replaces("reproduced", "vllm.LLM.generate", only="test_two_turns")
def next_turn_is_refused(original, self, prompts, *args, **options):
    """As vLLM did it, by the tokenizer's size alone."""
    largest = max(max(prompt["prompt_token_ids"]) for prompt in prompts)
    if len(prompts[0]["prompt_token_ids"]) > 20 and largest >= len(self.get_tokenizer()):
        raise ValueError(f"Token id {largest} is out of vocabulary")
    return original(self, prompts, *args, **options)
