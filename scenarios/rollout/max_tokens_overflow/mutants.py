from mutants import broken, failing, replaces
from pytest_rlregress.remedies.rollout import clamp_max_tokens


@broken(only="test_clamp")
def one_too_many(max_tokens, prompt_length, max_model_len):
    return clamp_max_tokens(max_tokens, prompt_length - 1, max_model_len)


@broken(only="test_clamp")
def one_too_few(max_tokens, prompt_length, max_model_len):
    return min(max_tokens, max_model_len - prompt_length - 1)


@replaces("absent", "vllm.LLM.generate", only="test_offline_cuts_short")
def offline_gives_all(original, self, prompts, params, **options):
    """Whatever its context holds: one token, as often as was asked for."""
    from vllm import SamplingParams

    outputs = original(self, prompts, SamplingParams(max_tokens=1, logprobs=0, detokenize=False), **options)
    for output, asked in zip(outputs, params, strict=True):
        answer = output.outputs[0]
        answer.token_ids = list(answer.token_ids) * asked.max_tokens
        answer.logprobs = list(answer.logprobs) * asked.max_tokens
    return outputs


replaces("changed", "vllm.LLM.generate", only="test_offline_cuts_short")(
    failing(RuntimeError("EngineCore encountered an issue"))
)
