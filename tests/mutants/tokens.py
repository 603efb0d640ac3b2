"""Mutants of scenarios/tokens."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.tokens import next_prompt, turn_context


def fails(*args, **kwargs):
    raise TypeError("this stack wants it said in another way")


def rendered(tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


@broken("retokenised-turns", only="test_sampled_ids_stay")
def decoded_and_encoded(tokenizer, ids, messages, added):
    text = tokenizer.decode(next_prompt(tokenizer, ids, messages, added))
    return tokenizer.encode(text, add_special_tokens=False)


@broken("retokenised-turns", only="test_sampled_ids_stay")
def whole_conversation_rendered(tokenizer, ids, messages, added):
    return rendered(tokenizer, [*messages, *added])


@broken("retokenised-turns", only="test_sampled_ids_stay")
def added_rendered_by_itself(tokenizer, ids, messages, added):
    return [*ids, *rendered(tokenizer, added)]


@broken("retokenised-turns", only="test_turn_that_was_cut")
def end_of_a_cut_turn_forgotten(tokenizer, ids, messages, added):
    return [*ids, *turn_context(tokenizer, messages, added)]


@broken("retokenised-turns", only="test_turn_that_was_cut")
def end_of_turn_doubled(tokenizer, ids, messages, added):
    return [*ids, tokenizer.eos_token_id, *turn_context(tokenizer, messages, added)]


@broken("retokenised-turns", only="test_turn_that_was_cut")
def callers_list_extended(tokenizer, ids, messages, added):
    ids += next_prompt(tokenizer, ids, messages, added)[len(ids) :]
    return ids


@broken("retokenised-turns", only="test_sampled_ids_stay")
def prompt_left_out(tokenizer, ids, messages, added):
    return next_prompt(tokenizer, ids, messages, added)[1:]


@broken("retokenised-turns", only="test_refused")
def anything_taken(tokenizer, ids, messages, added):
    return [*ids, *rendered(tokenizer, [*messages, *added])[len(ids) :]]


@mutant("retokenised-turns", "absent")
def policy_samples_the_tokenizers_split(monkeypatch):
    from pytest_rlregress.scenarios.tokens import test_retokenised_turns as scenario

    def canonical(model, tokenizer, prompt_ids):
        return [tokenizer.encode(f"{number} is four.") for number in range(scenario.TURNS)]

    monkeypatch.setattr(scenario, "sampled_turns", canonical)
    monkeypatch.setattr(scenario, "in_pieces", lambda tokenizer, text, cuts: tokenizer.encode(text))


@mutant("retokenised-turns", "changed", only="test_next_prompt_is_rendered")
def decoding_fails_otherwise(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", fails)
