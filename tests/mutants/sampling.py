"""Mutants of scenarios/sampling."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager

from mutants import broken, mutant
from pytest_rlregress.remedies.sampling import (
    encode_prompt,
    explicit_sampling,
    request_seed,
    sampled_logprobs,
    truncated_logprobs,
)


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


@broken("same-seed-replicas", only="test_far_apart")
def running_number(seed, *place):
    """One up with each copy: the n completions of a request have the seeds of the next ones."""
    return seed + sum(number * 100**index for index, number in enumerate(reversed(place)))


@broken("same-seed-replicas", only="test_replicas_with")
def step_and_copy_alone(seed, *place):
    return request_seed(seed, place[0], place[-1])


@broken("same-seed-replicas", only="test_replicas_with")
def one_for_all_copies(seed, *place):
    return request_seed(seed, *place[:-1], 0)


@broken("same-seed-replicas", only="test_same_for")
def another_every_time(seed, *place):
    return request_seed(time.perf_counter_ns(), *place)


@broken("same-seed-replicas", only="test_same_for")
def digits_run_together(seed, *place):
    return request_seed(seed, int("".join(map(str, place))))


@broken("same-seed-replicas", only="test_seeds_that")
def unsigned(seed, *place):
    return 2 * request_seed(seed, *place)


@broken("same-seed-replicas", only="test_no_place")
def without_a_place(seed, *place):
    return request_seed(seed, *place, 0)


@mutant("same-seed-replicas", "absent", only="test_copies")
def copies_get_seeds_of_their_own(monkeypatch):
    from vllm import LLM

    generate = LLM.generate

    def spread(self, prompts, params, **options):
        for index, one in enumerate(params):
            one.seed += index
        return generate(self, prompts, params, **options)

    monkeypatch.setattr(LLM, "generate", spread)


@mutant("same-seed-replicas", "changed", only="test_copies")
def engine_dies_of_a_seed(monkeypatch):
    engine_fails_otherwise(monkeypatch)


@broken("engine-resets-trainer-rng", only="test_whatever")
@contextmanager
def torch_alone():
    import torch

    with torch.random.fork_rng(devices=[]):
        yield


@broken("engine-resets-trainer-rng", only="test_whatever")
@contextmanager
def numpy_forgotten():
    state = random.getstate()
    with torch_alone():
        yield
    random.setstate(state)


@broken("engine-resets-trainer-rng", only="test_whatever")
@contextmanager
def seeded_anew():
    """From the beginning, and not from where it was."""
    import numpy as np
    import torch

    seed = torch.initial_seed()
    yield
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@broken("engine-resets-trainer-rng", only="test_block_that_fails")
@contextmanager
def where_nothing_fails():
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@broken("engine-resets-trainer-rng", only="test_start_with")
@contextmanager
def nothing_kept():
    yield


@mutant("engine-resets-trainer-rng", "absent", only="test_start")
def worker_seeds_nothing(monkeypatch):
    monkeypatch.setattr("vllm.v1.worker.cpu_worker.set_random_seed", lambda seed: None)


@mutant("engine-resets-trainer-rng", "changed", only="test_start")
def worker_seeds_otherwise(monkeypatch):
    from vllm.v1.worker import cpu_worker

    real = cpu_worker.set_random_seed
    monkeypatch.setattr(cpu_worker, "set_random_seed", lambda seed: real(seed + 1))


@mutant("engine-resets-trainer-rng", "changed", only="test_start")
def engine_does_not_start(monkeypatch):
    monkeypatch.setattr("vllm.LLM", failing(RuntimeError("Engine core initialization failed")))


@broken("out-of-vocabulary-token", only="test_only_what_has_text")
def all_that_the_model_has(tokenizer, model_vocabulary):
    return list(range(model_vocabulary))


@broken("out-of-vocabulary-token", only="test_gap")
def as_many_as_the_tokenizer_has(tokenizer, model_vocabulary):
    return list(range(min(len(tokenizer), model_vocabulary)))


@broken("out-of-vocabulary-token", only="test_added")
def without_added_tokens(tokenizer, model_vocabulary):
    return list(range(min(tokenizer.vocab_size, model_vocabulary)))


@broken("out-of-vocabulary-token", only="test_ids_of_both")
def all_that_the_tokenizer_has(tokenizer, model_vocabulary):
    return sorted(tokenizer.get_vocab().values())


@mutant("out-of-vocabulary-token", "absent", only="test_two_turns")
def logits_of_the_padding_are_masked(monkeypatch):
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

    compute = Qwen2ForCausalLM.compute_logits

    def masked(self, *args, **options):
        logits = compute(self, *args, **options)
        logits[..., 900:] = -float("inf")
        return logits

    monkeypatch.setattr(Qwen2ForCausalLM, "compute_logits", masked)


@mutant("out-of-vocabulary-token", "changed", only="test_two_turns")
def engine_dies_of_two_turns(monkeypatch):
    engine_fails_otherwise(monkeypatch)


@mutant("out-of-vocabulary-token", "reproduced", only="test_two_turns")
def next_turn_is_refused(monkeypatch):
    """As vLLM did it, by the tokenizer's size alone."""
    from vllm import LLM

    generate = LLM.generate

    def refusing(self, prompts, *args, **options):
        largest = max(max(prompt["prompt_token_ids"]) for prompt in prompts)
        if len(prompts[0]["prompt_token_ids"]) > 20 and largest >= len(self.get_tokenizer()):
            raise ValueError(f"Token id {largest} is out of vocabulary")
        return generate(self, prompts, *args, **options)

    monkeypatch.setattr(LLM, "generate", refusing)
