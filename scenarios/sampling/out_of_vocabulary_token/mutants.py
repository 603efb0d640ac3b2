"""Broken remedies of out-of-vocabulary-token, and stacks that differ."""

from __future__ import annotations

from mutants import broken, failing, mutant


def engine_fails_otherwise(monkeypatch):
    monkeypatch.setattr("vllm.LLM.generate", failing(RuntimeError("EngineCore encountered an issue")))


@broken(only="test_only_what_has_text")
def all_that_the_model_has(tokenizer, model_vocabulary):
    return list(range(model_vocabulary))


@broken(only="test_gap")
def as_many_as_the_tokenizer_has(tokenizer, model_vocabulary):
    return list(range(min(len(tokenizer), model_vocabulary)))


@mutant("absent", only="test_two_turns")
def logits_of_the_padding_are_masked(monkeypatch):
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

    compute = Qwen2ForCausalLM.compute_logits

    def masked(self, *args, **options):
        logits = compute(self, *args, **options)
        logits[..., 900:] = -float("inf")
        return logits

    monkeypatch.setattr(Qwen2ForCausalLM, "compute_logits", masked)


@mutant("changed", only="test_two_turns")
def engine_dies_of_two_turns(monkeypatch):
    engine_fails_otherwise(monkeypatch)


@mutant("reproduced", only="test_two_turns")
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
