"""Mutants of scenarios/sampling."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.sampling import encode_prompt, explicit_sampling, sampled_logprobs, truncated_logprobs


def failing(error):
    def function(*args, **options):
        raise error

    return function


def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def temperature_left_out(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0)


@broken("sampling-logprobs-temperature", only="test_processed")
def logprobs_divided(logits, ids, temperature):
    return sampled_logprobs(logits, ids, 1.0) / temperature


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def computed_in_bfloat16(logits, ids, temperature):
    return sampled_logprobs((logits / temperature).log_softmax(-1).exp().log(), ids, 1.0)


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def logits_divided_in_place(logits, ids, temperature):
    logits.detach().div_(temperature)
    return sampled_logprobs(logits, ids, 1.0)


@broken("sampling-logprobs-temperature", only="test_as_in_float64")
def without_gradient(logits, ids, temperature):
    return sampled_logprobs(logits.detach(), ids, temperature).requires_grad_()


@broken("sampling-logprobs-temperature", only="test_no_temperature")
def greedy_as_1(logits, ids, temperature):
    return sampled_logprobs(logits, ids, temperature if temperature > 0 else 1.0)


@broken("sampling-logprobs-temperature", only="test_shapes_that")
def cut_to_the_ids(logits, ids, temperature):
    return sampled_logprobs(logits[..., : ids.shape[-1], :].expand(*ids.shape, -1), ids, temperature)


@mutant("sampling-logprobs-temperature", "absent", only="0.5")
def default_is_processed(monkeypatch):
    from vllm.v1.sample.sampler import Sampler

    forward = Sampler.forward

    def processed(self, *args, **options):
        with monkeypatch.context() as patch:
            patch.setattr(self, "logprobs_mode", "processed_logprobs")
            patch.setattr(self.topk_topp_sampler, "logprobs_mode", "processed_logprobs")
            return forward(self, *args, **options)

    monkeypatch.setattr(Sampler, "forward", processed)


@mutant("sampling-logprobs-temperature", "changed", only="0.5")
def engine_dies(monkeypatch):
    engine_fails_otherwise(monkeypatch)


@mutant("sampling-logprobs-temperature", "changed", only="0.5")
def temperature_applied_twice(monkeypatch):
    """Log-probabilities of neither temperature are another failure."""
    from vllm.v1.sample.sampler import Sampler

    compute = Sampler.compute_logprobs
    monkeypatch.setattr(Sampler, "compute_logprobs", staticmethod(lambda logits: compute(logits * 4)))


@broken("truncated-support-logprobs", only="test_what_is_left")
def of_everything(logits, ids, temperature, **truncation):
    return sampled_logprobs(logits, ids, temperature)


@broken("truncated-support-logprobs", only="test_what_is_left")
def not_renormalised(logits, ids, temperature, top_k=0, top_p=1.0, min_p=0.0, sampled_by=None):
    """The mask is replayed, the mass is not made up for."""
    return (logits.float() / temperature).softmax(-1).log().gather(-1, ids[..., None])[..., 0]


@broken("truncated-support-logprobs", only="test_what_is_left")
def top_p_of_everything(logits, ids, temperature, top_k=0, top_p=1.0, **others):
    """Each of the whole distribution, the smaller set counts."""
    both = [
        truncated_logprobs(logits, ids, temperature, **others, **one) for one in ({"top_k": top_k}, {"top_p": top_p})
    ]
    return both[0].maximum(both[1])


@broken("truncated-support-logprobs", only="test_what_is_left")
def truncated_before_the_temperature(logits, ids, temperature, **truncation):
    return truncated_logprobs(logits / temperature, ids, 1.0, sampled_by=logits, **truncation)


@broken("truncated-support-logprobs", only="test_agreement")
def min_p_forgotten(logits, ids, temperature, min_p=0.0, **truncation):
    return truncated_logprobs(logits, ids, temperature, **truncation)


@broken("truncated-support-logprobs", only="test_of_a_later")
def of_the_later_policy_alone(logits, ids, temperature, sampled_by=None, **truncation):
    return truncated_logprobs(logits, ids, temperature, **truncation)


@broken("truncated-support-logprobs", only="at_the_border")
def rounding_decides(logits, ids, temperature, top_k=0, **truncation):
    kept = logits >= logits.topk(top_k).values[..., -1:]
    return sampled_logprobs(logits.masked_fill(~kept, -float("inf")), ids, temperature)


@broken("truncated-support-logprobs", only="test_refused")
def any_share(logits, ids, temperature, top_p=1.0, min_p=0.0, **truncation):
    share = {"top_p": min(max(top_p, 1e-6), 1.0), "min_p": min(max(min_p, 0.0), 1.0)}
    return truncated_logprobs(logits, ids, temperature, **share, **truncation)


@mutant("truncated-support-logprobs", "absent", only="top_k")
def processed_are_of_everything(monkeypatch):
    from vllm.v1.sample.sampler import Sampler

    real = Sampler.sample

    def of_the_whole_vocabulary(self, logits, metadata, *others):
        logprobs = (logits / metadata.temperature[:, None]).log_softmax(-1)
        return real(self, logits, metadata, *others)[0], logprobs

    monkeypatch.setattr(Sampler, "sample", of_the_whole_vocabulary)


@mutant("truncated-support-logprobs", "changed", only="top_k")
def engine_dies_of_top_k(monkeypatch):
    engine_fails_otherwise(monkeypatch)


@mutant("truncated-support-logprobs", "changed", only="top_k")
def processed_are_of_another_temperature(monkeypatch):
    """Off, but not by what was left out."""
    from vllm.v1.sample.sampler import Sampler

    real = Sampler.sample

    def of_temperature_3(self, logits, metadata, *others):
        logprobs = (logits / 3).log_softmax(-1)
        return real(self, logits, metadata, *others)[0], logprobs

    monkeypatch.setattr(Sampler, "sample", of_temperature_3)


@broken("generation-config-defaults", only="chosen_arrives")
def only_what_was_chosen(max_tokens, **chosen):
    return {"max_tokens": max_tokens, **chosen}


@broken("generation-config-defaults", only="trainers_policy")
def what_openai_knows(max_tokens, **chosen):
    """top_k, min_p and repetition_penalty are vLLM's own."""
    own = ("top_k", "min_p", "repetition_penalty")
    return {
        name: value
        for name, value in explicit_sampling(max_tokens, **chosen).items()
        if name not in own or name in chosen
    }


@broken("generation-config-defaults", only="trainers_policy")
def penalties_forgotten(max_tokens, **chosen):
    fields = explicit_sampling(max_tokens, **chosen)
    return {name: value for name, value in fields.items() if name not in ("presence_penalty", "frequency_penalty")}


@broken("generation-config-defaults", only="chosen_arrives")
def neutral_whatever_was_chosen(max_tokens, **chosen):
    return {**chosen, **explicit_sampling(max_tokens)}


@broken("generation-config-defaults", only="test_none")
def none_is_sent(max_tokens, **chosen):
    return {**explicit_sampling(max_tokens), **chosen}


@mutant("generation-config-defaults", "absent", only="server")
def nothing_is_filled(monkeypatch):
    monkeypatch.setattr("vllm.config.ModelConfig.get_diff_sampling_param", lambda self: {})


@mutant("generation-config-defaults", "changed", only="server")
def engine_dies_of_a_default(monkeypatch):
    engine_fails_otherwise(monkeypatch)


@broken("double-bos", only="test_rendered")
def tokenizer_as_it_is(tokenizer, text):
    return tokenizer.encode(text)


@broken("double-bos", only="test_plain")
def never_special(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@broken("double-bos", only="test_plain")
def always_one(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


@broken("double-bos", only="test_plain")
def special_unless_written(tokenizer, text):
    """Puts an end-of-text token behind the prompt, too."""
    written = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)
    return tokenizer.encode(text, add_special_tokens=not written)


@broken("double-bos", only="further_on")
def every_other_removed(tokenizer, text):
    ids = encode_prompt(tokenizer, text)
    return ids[:1] + [token for token in ids[1:] if token != tokenizer.bos_token_id]


@mutant("double-bos", "absent", only="test_text_for_the_trainer")
def tokenizer_looks_first(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    call = PreTrainedTokenizerFast.__call__

    def looking(self, text, **options):
        written = bool(self.bos_token) and isinstance(text, str) and text.startswith(self.bos_token)
        return call(self, text, **{"add_special_tokens": not written, **options})

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", looking)


@mutant("double-bos", "changed", only="test_text_for_the_trainer")
def template_fails(monkeypatch):
    error = TypeError("can only concatenate str (not 'NoneType') to str")
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.apply_chat_template", failing(error))


@mutant("double-bos", "changed", only="test_text_for_the_trainer")
def template_loses_the_token(monkeypatch):
    """None instead of one is another failure."""
    from transformers import PreTrainedTokenizerFast

    call = PreTrainedTokenizerFast.__call__
    monkeypatch.setattr(
        PreTrainedTokenizerFast,
        "__call__",
        lambda self, text, **options: call(self, text.replace(self.bos_token, ""), add_special_tokens=False),
    )
