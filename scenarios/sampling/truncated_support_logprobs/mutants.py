from mutants import broken, failing, replaces
from pytest_rlregress.remedies.sampling import sampled_logprobs


@broken(only="test_what_is_left")
def of_everything(logits, ids, temperature, **truncation):
    return sampled_logprobs(logits, ids, temperature)


@broken(only="at_the_border")
def rounding_decides(logits, ids, temperature, top_k=0, **truncation):
    kept = logits >= logits.topk(top_k).values[..., -1:]
    return sampled_logprobs(logits.masked_fill(~kept, -float("inf")), ids, temperature)


@replaces("absent", "vllm.v1.sample.sampler.Sampler.sample", only="top_k")
def processed_are_of_everything(original, self, logits, metadata, *others):
    logprobs = (logits / metadata.temperature[:, None]).log_softmax(-1)
    return original(self, logits, metadata, *others)[0], logprobs


replaces("changed", "vllm.LLM.generate", only="top_k")(failing(RuntimeError("EngineCore encountered an issue")))
