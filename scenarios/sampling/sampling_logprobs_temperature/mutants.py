from mutants import broken, failing, mutant, replaces
from pytest_rlregress.remedies.sampling import sampled_logprobs


@broken(only="as_in_float64")
def temperature_left_out(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0)


@broken(only="test_processed")
def logprobs_divided(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0) / temperature


@mutant("absent", only="0.5")
def default_is_processed(monkeypatch):
    from vllm.v1.sample.sampler import Sampler

    forward = Sampler.forward

    def processed(self, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(self, "logprobs_mode", "processed_logprobs")
            patch.setattr(self.topk_topp_sampler, "logprobs_mode", "processed_logprobs")
            return forward(self, *args, **options)

    monkeypatch.setattr(Sampler, "forward", processed)


replaces("changed", "vllm.LLM.generate", only="0.5")(failing(RuntimeError("EngineCore encountered an issue")))
