"""Mutants of scenarios/batch."""

from __future__ import annotations

import re
from types import SimpleNamespace

from mutants import broken, mutant
from pytest_rlregress.remedies.batch import align_batches
from pytest_rlregress.remedies.masks import completion_mask, info_mask


def fails(*args, **kwargs):
    raise TypeError("this stack wants it said in another way")


@broken("dataproto-concat-keys", only="test_aligned")
def untouched(batches, from_memory_db):
    return list(batches)


@broken("dataproto-concat-keys", only="test_aligned")
def only_common_keys(batches, from_memory_db):
    aligned = align_batches(batches, from_memory_db)
    for one in aligned:
        one.non_tensor_batch.pop("memory_id", None)
    return aligned


@broken("dataproto-concat-keys", only="test_aligned")
def filled_with_zero(batches, from_memory_db):
    aligned = align_batches(batches, from_memory_db)
    for one in aligned:
        for key, column in one.non_tensor_batch.items():
            one.non_tensor_batch[key] = column.copy()
            one.non_tensor_batch[key][[value is None for value in column]] = 0
    return aligned


@broken("dataproto-concat-keys", only="test_aligned")
def wrong_provenance(batches, from_memory_db):
    return align_batches(batches, [not flag for flag in from_memory_db])


@mutant("dataproto-concat-keys", "absent")
def concat_takes_the_union(monkeypatch):
    from verl.protocol import DataProto

    concat = DataProto.concat

    def fixed(data):
        aligned = align_batches(data, [False] * len(data))
        for one, given in zip(aligned, data, strict=True):
            del one.non_tensor_batch["from_memory_db"]
            one.non_tensor_batch.update(given.non_tensor_batch)
        return concat(aligned)

    monkeypatch.setattr(DataProto, "concat", fixed)


@mutant("dataproto-concat-keys", "changed")
def concat_fails_otherwise(monkeypatch):
    from verl.protocol import DataProto

    monkeypatch.setattr(DataProto, "concat", fails)


# Each mutant of completion_mask makes something else of the remedy's whole ids and mask, and cuts them to the limit.


def broken_mask(function):
    def subject(tokenizer, prompt, completion, max_prompt_length, max_completion_length):
        from pytest_rlregress.scenarios.batch.masks import UNLIMITED  # with hypothesis, which other folders do not need

        whole = completion_mask(tokenizer, prompt, completion, UNLIMITED, UNLIMITED)
        ids, mask = function(tokenizer, prompt, whole, max_completion_length)
        prompt_ids = whole.prompt_ids[-max_prompt_length:]
        return SimpleNamespace(prompt_ids=prompt_ids, completion_ids=ids, completion_mask=mask)

    subject.__name__ = function.__name__
    return broken("mask-length-drift", only="test_mask_covers")(subject)


@broken_mask
def one_longer(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], [*whole.completion_mask[:limit], 1]


@broken_mask
def one_early(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], [*whole.completion_mask[1:], 1][:limit]


@broken_mask
def mask_not_cut(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], whole.completion_mask


@broken_mask
def mask_cut_from_the_left(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], whole.completion_mask[-limit:]


def by_llama_offsets(tokenizer, prompt, whole):
    header = len(whole.prompt_ids) - len(tokenizer.encode(tokenizer.apply_chat_template(prompt, tokenize=False)))
    return [0] * (4 - header) + whole.completion_mask


@broken_mask
def llama_offsets(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], by_llama_offsets(tokenizer, prompt, whole)[:limit]


@broken_mask
def llama_offsets_cut_to_the_shorter_side(tokenizer, prompt, whole, limit):
    ids = whole.completion_ids[:limit]
    return ids, by_llama_offsets(tokenizer, prompt, whole)[: len(ids)]


@broken_mask
def generation_prompt_counted(tokenizer, prompt, whole, limit):
    """What the template writes right before a turn, ``<think>`` or the header's end, is trained on."""
    mask = whole.completion_mask
    return whole.completion_ids[:limit], [max(pair) for pair in zip(mask, [*mask[1:], 1], strict=True)][:limit]


@broken_mask
def tool_outputs_counted(tokenizer, prompt, whole, limit):
    return whole.completion_ids[:limit], [1] * len(whole.completion_ids[:limit])


@broken_mask
def end_of_turn_not_counted(tokenizer, prompt, whole, limit):
    ids = whole.completion_ids[:limit]
    pairs = zip(ids, whole.completion_mask[:limit], strict=True)
    return ids, [mask if token != tokenizer.eos_token_id else 0 for token, mask in pairs]


@broken("mask-length-drift", only="test_rollout_in_trl")
def longer_than_its_ids(*conversation_and_limits):
    whole = completion_mask(*conversation_and_limits)
    return SimpleNamespace(**{**vars(whole), "completion_mask": [*whole.completion_mask, 1]})


@broken("mask-length-drift", only="test_rollout_in_trl")
def all_of_it_trained(*conversation_and_limits):
    whole = completion_mask(*conversation_and_limits)
    return SimpleNamespace(**{**vars(whole), "completion_mask": [1] * len(whole.completion_ids)})


@mutant("mask-length-drift", "absent", only="test_verl_data_set")
def header_as_it_is_rendered(monkeypatch):
    from verl.utils.dataset import multiturn_sft_dataset as module

    found = module.extract_system_prompt_and_generation

    def without_think(*args, **kwargs):
        system_prompt, generation_prompt = found(*args, **kwargs)
        return system_prompt, generation_prompt[:1]

    monkeypatch.setattr(module, "extract_system_prompt_and_generation", without_think)


@mutant("mask-length-drift", "reproduced", only="test_trl_prompt_and_completion")
def prompt_as_long_as_by_itself(monkeypatch):
    """As in TRL up to 1.5."""
    monkeypatch.setattr("trl.trainer.sft_trainer.common_prefix_length", lambda prompt_ids, ids: len(prompt_ids))


@mutant("mask-length-drift", "reproduced", only="test_trl_tool_call")
def ids_rendered_anew(monkeypatch):
    """As in TRL up to 0.28."""
    from trl import GRPOTrainer

    loop = GRPOTrainer._tool_call_loop

    def renders(trainer, *args):
        mask, completions, ids, *others = loop(trainer, *args)
        tokenizer = trainer.processing_class
        return mask, completions, [tokenizer.encode(tokenizer.decode(row)) for row in ids], *others

    monkeypatch.setattr(GRPOTrainer, "_tool_call_loop", renders)


@mutant("mask-length-drift", "reproduced", only="test_verl_agent_loop")
def outputs_of_tools_counted(monkeypatch):
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    handle = ToolAgentLoop._handle_processing_tools_state

    async def counted(loop, data):
        state = await handle(loop, data)
        data.response_mask = [1] * len(data.response_mask)
        return state

    monkeypatch.setattr(ToolAgentLoop, "_handle_processing_tools_state", counted)


@mutant("mask-length-drift", "absent", only="test_len_of_the_encoding")
def encoding_has_the_length_of_its_ids(monkeypatch):
    from transformers import BatchEncoding

    monkeypatch.setattr(BatchEncoding, "__len__", lambda encoding: len(encoding["input_ids"]))


@mutant("mask-length-drift", "changed", only="test_ids_and_mask_made_apart")
def model_fails_otherwise(monkeypatch):
    from transformers import Qwen2ForCausalLM

    monkeypatch.setattr(Qwen2ForCausalLM, "forward", fails)


@broken("non-tensor-dtype-object")
def as_numpy_likes(values):
    import numpy as np

    return np.array(values)


@broken("non-tensor-dtype-object", only="test_any_columns")
def second_dimension_kept(values):
    import numpy as np

    return np.array(values, dtype=object)


@broken("non-tensor-dtype-object", only="test_arrays_made_elsewhere")
def numpy_scalars_kept(values):
    import numpy as np

    return np.fromiter(values, dtype=object, count=len(values))


@mutant("non-tensor-dtype-object", "absent", only="test_union_of_equal_columns")
def union_compares_values(monkeypatch):
    from verl import protocol

    monkeypatch.setattr(protocol, "_deep_equal", lambda one, other, visited: one.tolist() == other.tolist())


@mutant("non-tensor-dtype-object", "changed", only="test_ragged")
def array_fails_otherwise(monkeypatch):
    import numpy as np

    monkeypatch.setattr(np, "array", fails)


@broken("system-text-in-loss", only="test_only_the_policy")
def response_mask_alone(tokenizer, response_ids):
    return [1] * len(response_ids)


def by_pattern(tokenizer, response_ids, pattern):
    """A mask over the pattern's matches in the decoded text, by the offsets of encoding that again."""
    text = tokenizer.decode(response_ids)
    spans = [found.span() for found in re.finditer(pattern, text, re.DOTALL)]
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    return [int(not any(first < end and begin < last for first, last in spans)) for begin, end in offsets]


@broken("system-text-in-loss", only="test_any_response")
def nesting_overlooked(tokenizer, response_ids):
    return by_pattern(tokenizer, response_ids, r"\n*<information>.*?(</information>\n*|\Z)|\n*My previous[^\n]*\n*")


@broken("system-text-in-loss", only="test_only_the_policy")
def from_the_first_to_the_last(tokenizer, response_ids):
    return by_pattern(tokenizer, response_ids, r"\n*My previous.*</information>\n*")


@broken("system-text-in-loss", only="test_every_limit")
def closed_blocks_alone(tokenizer, response_ids):
    return by_pattern(tokenizer, response_ids, r"\n*<information>.*?</information>\n*|\n*My previous[^\n]*\n*")


@broken("system-text-in-loss", only="test_only_the_policy")
def tokens_across_the_border_kept(tokenizer, response_ids):
    mask = info_mask(tokenizer, response_ids)
    return [max(pair) for pair in zip(mask, [*mask[:1], *mask[:-1]], strict=True)]


@broken("system-text-in-loss", only="test_any_response")
def markers_looked_up_as_tokens(tokenizer, response_ids):
    begin, end = (tokenizer.encode(tag) for tag in ("<information>", "</information>"))
    mask, inside = [], False
    for position in range(len(response_ids)):
        inside |= response_ids[position : position + len(begin)] == begin
        mask.append(int(not inside))
        inside &= response_ids[position + 1 - len(end) : position + 1] != end
    return mask


@mutant("system-text-in-loss", "absent")
def insertions_are_never_sampled(monkeypatch):
    """A stack that keeps the system's text out of the response."""
    from pytest_rlregress.scenarios.batch.system_text_in_loss import test_system_text_in_loss as scenario

    monkeypatch.setattr(scenario, "ROLLOUT", [piece for piece in scenario.ROLLOUT if piece[1]])


@mutant("system-text-in-loss", "changed")
def gradients_are_lost(monkeypatch):
    import torch

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda logits, ids, reduction: ids.float())
