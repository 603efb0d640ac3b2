"""Mutants of scenarios/tokens."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.batch import MaskedCompletion
from pytest_rlregress.remedies.tokens import next_prompt, rows_of_turns, turn_context


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


@broken("history-reasoning-stripped", only="test_every_turn")
def one_row_whatever_the_prompts(turns):
    row = MaskedCompletion(list(turns[0][0]), list(turns[0][1]), [1] * len(turns[0][1]))
    for prompt, sampled in turns[1:]:
        context = list(prompt[len(row.prompt_ids) + len(row.completion_ids) :])
        mask = row.completion_mask + [0] * len(context) + [1] * len(sampled)
        row = MaskedCompletion(row.prompt_ids, row.completion_ids + context + list(sampled), mask)
    return [row]


@broken("history-reasoning-stripped", only="test_any_turns")
def a_row_for_each_turn(turns):
    return [MaskedCompletion(list(prompt), list(sampled), [1] * len(sampled)) for prompt, sampled in turns]


@broken("history-reasoning-stripped", only="test_every_turn")
def last_turn_alone(turns):
    return rows_of_turns(turns[-1:])


@broken("history-reasoning-stripped", only="test_trained_behind")
def context_trained_on(turns):
    rows = rows_of_turns(turns)
    return [MaskedCompletion(row.prompt_ids, row.completion_ids, [1] * len(row.completion_ids)) for row in rows[:1]]


@broken("history-reasoning-stripped", only="test_any_turns")
def prompts_compared_with_the_first(turns):
    """Goes on in the first row whenever a prompt begins as that of the first turn."""
    rows = rows_of_turns(turns)
    if len(rows) > 1 and rows[1].prompt_ids[: len(rows[0].prompt_ids)] == rows[0].prompt_ids:
        return rows_of_turns([(rows[0].prompt_ids, rows[0].completion_ids)]) + rows[2:]
    return rows


def keeps_the_reasoning(tiny_qwen, family):
    tokenizer = tiny_qwen.tokenizer("qwen2.5")
    if family == "deepseek-r1-distill":
        end = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
        assert end in tokenizer.chat_template
        tokenizer.chat_template = tokenizer.chat_template.replace(end, end + "{{- '<think>\\n' -}}")
    return tokenizer


@mutant("history-reasoning-stripped", "absent")
def template_keeps_the_reasoning(monkeypatch):
    from pytest_rlregress.scenarios.tokens import test_history_reasoning_stripped as scenario

    monkeypatch.setattr(scenario, "tokenizer_of", keeps_the_reasoning)


@mutant("history-reasoning-stripped", "changed", only="test_rendered_for_training")
def rendering_fails_otherwise(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "apply_chat_template", fails)
