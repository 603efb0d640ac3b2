"""Mutants of scenarios/tokens."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.masks import MaskedCompletion
from pytest_rlregress.remedies.tokens import (
    next_prompt,
    padded_batch,
    reward_text,
    rows_of_turns,
    truncated,
    turn_context,
)


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
    from pytest_rlregress.scenarios.tokens.retokenised_turns import test_retokenised_turns as scenario

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
    from pytest_rlregress.scenarios.tokens.history_reasoning_stripped import test_history_reasoning_stripped as scenario

    monkeypatch.setattr(scenario, "tokenizer_of", keeps_the_reasoning)


@mutant("history-reasoning-stripped", "changed", only="test_rendered_for_training")
def rendering_fails_otherwise(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "apply_chat_template", fails)


@broken("special-tokens-stripped-from-reward", only="test_well_formed")
def special_tokens_skipped(tokenizer, completion_ids):
    return tokenizer.decode(completion_ids, skip_special_tokens=True)


@broken("special-tokens-stripped-from-reward", only="test_well_formed")
def end_of_turn_kept(tokenizer, completion_ids):
    return tokenizer.decode([token for token in completion_ids if token != tokenizer.pad_token_id])


@broken("special-tokens-stripped-from-reward", only="test_well_formed")
def one_token_taken_away(tokenizer, completion_ids):
    return tokenizer.decode(completion_ids[:-1])


@broken("special-tokens-stripped-from-reward", only="test_text_is_whole")
def ends_taken_away_everywhere(tokenizer, completion_ids):
    ends = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return tokenizer.decode([token for token in completion_ids if token not in ends])


@broken("special-tokens-stripped-from-reward", only="test_text_is_whole")
def white_space_stripped(tokenizer, completion_ids):
    return reward_text(tokenizer, completion_ids).strip()


@broken("special-tokens-stripped-from-reward", only="test_spaces_stay")
def cleaned_up(tokenizer, completion_ids):
    return reward_text(tokenizer, completion_ids).replace(" .", ".").replace(" ?", "?").replace(" ,", ",")


@broken("special-tokens-stripped-from-reward", only="test_well_formed")
def callers_list_shortened(tokenizer, completion_ids):
    text = reward_text(tokenizer, completion_ids)
    completion_ids.pop()
    return text


@mutant("special-tokens-stripped-from-reward", "absent")
def tags_are_not_skipped(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    decode = PreTrainedTokenizerFast.decode

    def decoded(self, token_ids, skip_special_tokens=False, **arguments):
        ids = [int(token) for token in token_ids]
        while skip_special_tokens and ids and ids[-1] in (self.eos_token_id, self.pad_token_id):
            ids.pop()
        return decode(self, ids, **arguments)

    def batch_decoded(self, rows, **arguments):
        return [decoded(self, row, **arguments) for row in rows]

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", decoded)
    monkeypatch.setattr(PreTrainedTokenizerFast, "batch_decode", batch_decoded)


@mutant("special-tokens-stripped-from-reward", "changed", only="test_verl")
def completions_are_decoded_otherwise(monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", fails)


@broken("turn-separator-lost", only="test_as_the_family")
def added_by_itself_without_its_system_prompt(tokenizer, messages, added):
    """As verl 0.7 does: what two empty user messages have in common is taken for the system prompt."""
    empty = [{"role": "user", "content": ""}]
    one, two = (tokenizer.apply_chat_template(empty * count, tokenize=False) for count in (1, 2))
    text = tokenizer.apply_chat_template(added, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text[len(one) - (len(two) - len(one)) :], add_special_tokens=False)


@broken("turn-separator-lost", only="test_as_the_family")
def end_of_turn_included(tokenizer, messages, added):
    return [tokenizer.eos_token_id, *turn_context(tokenizer, messages, added)]


@broken("turn-separator-lost", only="test_as_the_family")
def a_line_break_whatever_the_template(tokenizer, messages, added):
    text = tokenizer.decode(turn_context(tokenizer, messages, added)).removeprefix("\n")
    return tokenizer.encode("\n" + text)


@broken("turn-separator-lost", only="test_as_the_family")
def no_generation_prompt(tokenizer, messages, added):
    whole, before = (
        tokenizer.apply_chat_template(part, tokenize=False) for part in ([*messages, *added], list(messages))
    )
    return tokenizer.encode(("\n" if before.endswith("\n") else "") + whole[len(before) :])


@broken("turn-separator-lost", only="test_as_the_family")
def behind_the_first_place_that_reads_the_same(tokenizer, messages, added):
    text = tokenizer.apply_chat_template([*messages, *added], tokenize=False, add_generation_prompt=True)
    behind = text.partition(messages[-1]["content"] or "?")[2].partition(tokenizer.eos_token)[2]
    return tokenizer.encode(behind, add_special_tokens=False)


@broken("turn-separator-lost", only="test_tool_calls_apart")
def tool_calls_taken_for_context(tokenizer, messages, added):
    whole = [*messages[:-1], {**messages[-1], "content": "said"}, *added]
    text = tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text.rpartition("said")[2].removeprefix(tokenizer.eos_token))


@broken("turn-separator-lost", only="test_refused")
def last_message_not_looked_at(tokenizer, messages, added):
    return rendered(tokenizer, [*messages, *added])


@mutant("turn-separator-lost", "absent")
def model_type_is_known(monkeypatch):
    from verl.utils.tokenizer import continuous_token_wiring as wiring

    monkeypatch.setitem(wiring._MODEL_TYPE_TO_FAMILY, "llama", wiring.ContinuousTokenModelFamily.QWEN)


@mutant("turn-separator-lost", "changed", only="test_agent_loop")
def agent_loop_fails_otherwise(monkeypatch):
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    monkeypatch.setattr(ToolAgentLoop, "run", fails)


@broken("pad-is-eos", only="test_trained_to_stop")
def labels_by_id(rows, pad_token_id):
    batch = padded_batch(rows, pad_token_id)
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == pad_token_id, -100)
    return batch


@broken("pad-is-eos", only="test_any_rows")
def attention_by_id(rows, pad_token_id):
    batch = padded_batch(rows, pad_token_id)
    return {**batch, "attention_mask": (batch["input_ids"] != pad_token_id).long()}


@broken("pad-is-eos", only="test_loss_is_of_the_rows")
def padding_trained_on(rows, pad_token_id):
    batch = padded_batch(rows, pad_token_id)
    return {**batch, "labels": batch["input_ids"]}


@broken("pad-is-eos", only="test_any_rows")
def padded_on_the_left(rows, pad_token_id):
    batch = padded_batch([list(row)[::-1] for row in rows], pad_token_id)
    return {name: tensor.flip(1) for name, tensor in batch.items()}


@broken("pad-is-eos", only="test_any_rows")
def nothing_of_no_rows(rows, pad_token_id):
    return padded_batch(rows, pad_token_id) if rows else {}


@mutant("pad-is-eos", "absent")
def collator_masks_by_length(monkeypatch):
    from transformers import DataCollatorForLanguageModeling

    def collated(self, features):
        return padded_batch([feature["input_ids"] for feature in features], self.tokenizer.pad_token_id)

    monkeypatch.setattr(DataCollatorForLanguageModeling, "__call__", collated)


@mutant("pad-is-eos", "changed", only="test_end_of_turn")
def collator_fails_otherwise(monkeypatch):
    from transformers import DataCollatorForLanguageModeling

    monkeypatch.setattr(DataCollatorForLanguageModeling, "__call__", fails)


@broken("truncation-told-by-eos-id", only="test_cut_is")
def told_by_one_id(completion_ids, finish_reasons, stop_ids):
    return [not ids or ids[-1] not in (stop_ids or [2])[:1] for ids in completion_ids]


@broken("truncation-told-by-eos-id", only="test_each_way")
def told_by_the_last_id(completion_ids, finish_reasons, stop_ids):
    return [not ids or ids[-1] not in stop_ids for ids in completion_ids]


@broken("truncation-told-by-eos-id", only="test_each_way")
def aborted_is_finished(completion_ids, finish_reasons, stop_ids):
    reasons = ["stop" if reason == "abort" else reason for reason in finish_reasons]
    return truncated(completion_ids, reasons, stop_ids)


@broken("truncation-told-by-eos-id", only="test_each_way")
def no_word_is_cut(completion_ids, finish_reasons, stop_ids):
    return [reason != "stop" for reason in finish_reasons]


@broken("truncation-told-by-eos-id", only="test_each_way")
def any_end_in_it_is_an_end(completion_ids, finish_reasons, stop_ids):
    known = ["stop" if reason is None and {*ids} & {*stop_ids} else reason
             for ids, reason in zip(completion_ids, finish_reasons, strict=True)]  # fmt: skip
    return truncated(completion_ids, known, stop_ids)


@broken("truncation-told-by-eos-id", only="test_reasons_of")
def numbers_not_compared(completion_ids, finish_reasons, stop_ids):
    return truncated(completion_ids[: len(finish_reasons)], finish_reasons, stop_ids)


@mutant("truncation-told-by-eos-id", "absent")
def trainer_knows_every_end(monkeypatch):
    """As if the trainer took over what the request added."""
    from pytest_rlregress.scenarios.tokens import grpo
    from pytest_rlregress.scenarios.tokens.truncation_told_by_eos_id import test_truncation_told_by_eos_id as scenario

    trainer = grpo.trainer

    def told(directory, tokenizer, *arguments):
        made = trainer(directory, tokenizer, *arguments)
        made.eos_token_ids = tokenizer.convert_tokens_to_ids(scenario.ENDS)
        return made

    monkeypatch.setattr(grpo, "trainer", told)


@mutant("truncation-told-by-eos-id", "changed", only="test_grpo_trainer")
def trainer_fails_otherwise(monkeypatch):
    from trl import GRPOTrainer

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", fails)
