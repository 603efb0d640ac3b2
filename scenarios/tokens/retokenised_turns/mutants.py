"""Broken remedies of retokenised-turns, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.tokens import next_prompt, turn_context


@broken(only="test_sampled_ids_stay")
def decoded_and_encoded(tokenizer, ids, messages, added):
    text = tokenizer.decode(next_prompt(tokenizer, ids, messages, added))
    return tokenizer.encode(text, add_special_tokens=False)


@broken(only="test_turn_that_was_cut")
def end_of_a_cut_turn_forgotten(tokenizer, ids, messages, added):
    return [*ids, *turn_context(tokenizer, messages, added)]


@mutant("absent")
def policy_samples_the_tokenizers_split(monkeypatch):
    from pytest_rlregress.scenarios.tokens.retokenised_turns import test_retokenised_turns as scenario

    def canonical(model, tokenizer, prompt_ids):
        return [tokenizer.encode(f"{number} is four.") for number in range(scenario.TURNS)]

    monkeypatch.setattr(scenario, "sampled_turns", canonical)
    monkeypatch.setattr(scenario, "in_pieces", lambda tokenizer, text, cuts: tokenizer.encode(text))


@mutant("changed", only="test_next_prompt_is_rendered")
def decoding_fails_otherwise(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", fails)
