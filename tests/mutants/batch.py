"""Mutants of scenarios/batch."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

from mutants import broken, mutant
from pytest_rlregress.remedies.batch import (
    align_batches,
    completion_mask,
    info_mask,
    json_columns,
    restore_ragged,
    reward_of_policy,
    trained_where_known,
    union_batches,
)


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


@broken("dataproto-concat-keys", only="test_aligned")
def reordered(batches, from_memory_db):
    return align_batches(batches, from_memory_db)[::-1]


@broken("dataproto-concat-keys", only="test_aligned")
def in_place(batches, from_memory_db):
    aligned = align_batches(batches, from_memory_db)
    for one, new in zip(batches, aligned, strict=True):
        one.non_tensor_batch.update(new.non_tensor_batch)
    return aligned


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


@broken("union-batch-size")
def unchecked(batch, other):
    return batch.union(other)


@broken("union-batch-size", only="test_any_sizes")
def tensors_checked_alone(batch, other):
    if len(batch) != len(other):
        raise ValueError(f"union of {len(batch)} rows with {len(other)}")
    return batch.union(other)


@broken("union-batch-size", only="test_any_sizes")
def checked_too_late(batch, other):
    batch.non_tensor_batch.update(other.non_tensor_batch)
    return union_batches(batch, other)


@broken("union-batch-size", only="test_any_sizes")
def sizes_not_told(batch, other):
    try:
        return union_batches(batch, other)
    except ValueError:
        raise ValueError("batch 1 does not fit batch 2") from None


@broken("union-batch-size", only="test_union_is_still_a_union")
def cut_to_the_shorter_side(batch, other):
    return union_batches(batch[:1], other[:1])


@mutant("union-batch-size", "absent", only="test_augmented_column")
def union_drops_odd_columns(monkeypatch):
    from verl.protocol import DataProto

    union = DataProto.union

    def fixed(self, other):
        columns = {key: column for key, column in other.non_tensor_batch.items() if len(column) == len(self)}
        return union(self, DataProto(other.batch, columns, other.meta_info))

    monkeypatch.setattr(DataProto, "union", fixed)


@mutant("union-batch-size", "changed", only="test_augmented_rows")
def union_fails_otherwise(monkeypatch):
    from verl.protocol import DataProto

    monkeypatch.setattr(DataProto, "union", fails)


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
    from pytest_rlregress.scenarios.batch import test_system_text_in_loss as scenario

    monkeypatch.setattr(scenario, "ROLLOUT", [piece for piece in scenario.ROLLOUT if piece[1]])


@mutant("system-text-in-loss", "changed")
def gradients_are_lost(monkeypatch):
    import torch

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda logits, ids, reduction: ids.float())


@broken("dataset-null-fill", only="test_rendered_as_given")
def as_arrow_has_it(rows, columns):
    from datasets import Dataset

    return Dataset.from_list(rows)


@broken("dataset-null-fill", only="test_rows_come")
def nulls_dropped(rows, columns):
    """What many do before the template: a null that was given goes too."""
    data = json_columns(rows, columns)
    read = data.format["format_kwargs"]["transform"]

    def without_nulls(value):
        if isinstance(value, dict):
            return {key: without_nulls(one) for key, one in value.items() if one is not None}
        return [without_nulls(one) for one in value] if isinstance(value, list) else value

    return data.with_transform(lambda batch: {key: without_nulls(column) for key, column in read(batch).items()})


@broken("dataset-null-fill", only="test_rows_come")
def columns_of_the_first_row(rows, columns):
    return json_columns(rows, columns).select_columns([*rows[0]])


@broken("dataset-null-fill", only="test_rendered_as_given")
def text_left_unread(rows, columns):
    return json_columns(rows, columns).with_format(None)


@broken("dataset-null-fill", only="test_rendered_as_given")
def first_column_alone(rows, columns):
    return json_columns(rows, columns[:1])


@broken("dataset-null-fill", only="test_rows_come")
def rows_changed(rows, columns):
    for row in rows:
        row.setdefault("tools", None)
    return json_columns(rows, columns)


@broken("dataset-null-fill", only="test_what_json")
def written_somehow(rows, columns):
    return json_columns([{key: repr(value) for key, value in row.items()} for row in rows], columns)


@broken("dataset-null-fill", only="test_text_in_files")
def python_text(rows, columns):
    from datasets import Dataset

    data = Dataset.from_list([{**row, **{column: repr(row[column]) for column in columns}} for row in rows])
    return data.with_transform(lambda batch: batch)


@mutant("dataset-null-fill", "absent", only="from-list")
def dicts_kept_as_given(monkeypatch):
    """A datasets that keeps dicts of differing keys as JSON by itself."""
    from datasets import Dataset

    from_list = Dataset.from_list

    def kept(rows, **keywords):
        columns = [key for key in rows[0] if isinstance(rows[0][key], (dict, list))] if rows else []
        monkeypatch.setattr(Dataset, "from_list", from_list)
        try:
            return json_columns(rows, columns)
        finally:
            monkeypatch.setattr(Dataset, "from_list", kept)

    monkeypatch.setattr(Dataset, "from_list", kept)


@mutant("dataset-null-fill", "changed")
def mixed_dicts_refused(monkeypatch):
    from datasets import Dataset

    def refuses(rows, **keywords):
        raise ValueError("dicts of differing keys in the column messages")

    monkeypatch.setattr(Dataset, "from_list", refuses)


@broken("ragged-index-lost", only="test_rows_come_back")
def as_it_came(batch, ragged):
    return batch


@broken("ragged-index-lost", only="test_rows_come_back")
def index_alone(batch, ragged):
    """As verl does it: the rows are right, the shape is not."""
    for name, dimension in ragged.items():
        batch[name]._ragged_idx = dimension
    return batch


@broken("ragged-index-lost", only="test_rows_come_back")
def only_what_is_asked_for(batch, ragged):
    return restore_ragged(batch.select(*ragged), ragged)


@broken("ragged-index-lost", only="test_what_cannot_be")
def any_dimension_will_do(batch, ragged):
    return batch


@broken("ragged-index-lost", only="test_batch_is_left")
def in_the_same_batch(batch, ragged):
    batch.unlock_()
    for name in [name for name in ragged if name in batch.keys()]:  # noqa: SIM118
        batch[name] = restore_ragged(batch, ragged)[name]
    return batch


@broken("ragged-index-lost", only="test_batch_is_left")
def everything_copied(batch, ragged):
    restored = restore_ragged(batch, ragged)
    return restored.clone()


@broken("ragged-index-lost", only="test_batch_is_left")
def every_name_must_be_there(batch, ragged):
    return restore_ragged(batch.select(*ragged), ragged)


@mutant("ragged-index-lost", "absent")
def index_is_found_again(monkeypatch):
    """As if sent batches kept it: the dimension that has as many elements as the rows have together."""
    from torch.nested._internal.nested_tensor import NestedTensor

    def with_index(make):
        def made(self, values, offsets, *, lengths=None, **about):
            if "_ragged_idx" not in about:
                about["_ragged_idx"] = values.shape.index(int(offsets[-1])) + 1
            return make(self, values, offsets, lengths=lengths, **about)

        return made

    monkeypatch.setattr(NestedTensor, "__init__", with_index(NestedTensor.__init__))
    monkeypatch.setattr(NestedTensor, "__new__", staticmethod(with_index(NestedTensor.__new__)))


@mutant("ragged-index-lost", "changed")
def jagged_tensors_refused(monkeypatch):
    from tensordict import TensorDict

    def refuses(self, *args, **kwargs):
        raise NotImplementedError("jagged tensors cannot be consolidated")

    monkeypatch.setattr(TensorDict, "consolidate", refuses)


@broken("missing-logprob-zero-filled", only="test_only_what")
def filled_with_zero_and_trained(response_mask, logprobs):
    return list(response_mask), trained_where_known(response_mask, logprobs)[1]


@broken("missing-logprob-zero-filled", only="-nan")
def none_alone_is_missing(response_mask, logprobs):
    mask = [int(mask and one is not None) for mask, one in zip(response_mask, logprobs, strict=True)]
    return mask, [one or 0.0 for one in logprobs]


@broken("missing-logprob-zero-filled", only="-inf")
def infinity_kept(response_mask, logprobs):
    mask, known = trained_where_known(response_mask, logprobs)
    infinite = [one is not None and math.isinf(one) for one in logprobs]
    return [int(a or b) for a, b in zip(mask, infinite, strict=True)], known


@broken("missing-logprob-zero-filled", only="test_any_response")
def zero_is_missing_too(response_mask, logprobs):
    return trained_where_known(response_mask, [one or None for one in logprobs])


@broken("missing-logprob-zero-filled", only="test_any_response")
def dropped(response_mask, logprobs):
    kept = [pair for pair in zip(response_mask, logprobs, strict=True) if pair[1] is not None]
    return trained_where_known([mask for mask, _ in kept], [one for _, one in kept])


@broken("missing-logprob-zero-filled", only="test_lengths_that_differ")
def cut_to_the_shorter(response_mask, logprobs):
    length = min(len(response_mask), len(logprobs))
    return trained_where_known(response_mask[:length], logprobs[:length])


@broken("missing-logprob-zero-filled", only="test_lengths_that_differ")
def shorter_is_the_end_missing(response_mask, logprobs):
    return trained_where_known(response_mask, [*logprobs, *[None] * (len(response_mask) - len(logprobs))])


@broken("missing-logprob-zero-filled", only="test_any_response")
def in_place_mask(response_mask, logprobs):
    response_mask[:] = trained_where_known(response_mask, logprobs)[0]
    return trained_where_known(response_mask, logprobs)


def post_processing(monkeypatch, changed):
    """Have verl's post-processing take what ``changed`` makes of an agent loop's output."""
    from verl.experimental.agent_loop import agent_loop

    worker = getattr(agent_loop, "AgentLoopWorkerBase", None) or agent_loop.AgentLoopWorker
    process = worker._agent_loop_postprocess

    async def patched(self, output, **about):
        changed(output)
        return await process(self, output, **about)

    monkeypatch.setattr(worker, "_agent_loop_postprocess", patched)


@mutant("missing-logprob-zero-filled", "absent")
def masked_where_there_is_none(monkeypatch):
    def mask(output):
        there = len(output.response_logprobs)
        output.response_mask = [*output.response_mask[:there], *[0] * (len(output.response_mask) - there)]

    post_processing(monkeypatch, mask)


@mutant("missing-logprob-zero-filled", "changed")
def lengths_compared(monkeypatch):
    def compare(output):
        if len(output.response_logprobs) != len(output.response_ids):
            raise ValueError("a response and its log-probabilities differ in length")

    post_processing(monkeypatch, compare)


@broken("tool-output-in-reward", only="test_answer_of_the_policy")
def all_that_is_there(manager, data, pad_token_id):
    return manager(data)


@broken("tool-output-in-reward", only="test_answer_of_the_policy")
def tool_alone(manager, data, pad_token_id):
    data.batch["response_mask"] = data.batch["attention_mask"][:, 3:] - data.batch["response_mask"]
    return reward_of_policy(manager, data, pad_token_id)


@broken("tool-output-in-reward", only="test_any_responses")
def where_the_shorter_response_ends(manager, data, pad_token_id):
    rewards = reward_of_policy(manager, data, pad_token_id)
    moved = rewards.clone().zero_()
    for row, mask in enumerate(data.batch["response_mask"]):
        moved[row, mask.sum() - 1] = rewards[row].sum()
    return moved


@broken("tool-output-in-reward", only="test_any_responses")
def tools_tokens_as_padding(manager, data, pad_token_id):
    """Decoded, padding in the middle is skipped; but the attention mask ends early."""
    copied = data[list(range(len(data)))]
    copied.batch["responses"] = data.batch["responses"].masked_fill(data.batch["response_mask"] == 0, pad_token_id)
    width = data.batch["responses"].shape[-1]
    copied.batch["attention_mask"][:, -width:] = data.batch["response_mask"]
    return manager(copied)


@broken("tool-output-in-reward", only="test_any_responses")
def given_batch_changed(manager, data, pad_token_id):
    rewards = reward_of_policy(manager, data, pad_token_id)
    data.batch["token_level_scores"] = rewards
    return rewards


@broken("tool-output-in-reward", only="test_any_responses")
def last_turn_alone(manager, data, pad_token_id):
    copied = data[list(range(len(data)))]
    for mask in copied.batch["response_mask"]:
        inside = False
        for index in range(len(mask) - 1, -1, -1):
            if inside and mask[index] == 0:
                mask[:index] = 0
                break
            inside |= bool(mask[index])
    return reward_of_policy(manager, copied, pad_token_id)


def reads_policy_alone(monkeypatch):
    """verl's managers decode what the response mask keeps."""
    from verl.experimental.reward_loop.reward_manager import naive
    from verl.workers.reward_manager import NaiveRewardManager

    call, run = NaiveRewardManager.__call__, naive.NaiveRewardManager.run_single

    def without_tools(data):
        data = data[list(range(len(data)))]
        if "response_mask" in data.batch.keys():  # noqa: SIM118
            mask = data.batch["response_mask"]
            order = (1 - mask).argsort(dim=-1, stable=True)
            data.batch["responses"] = data.batch["responses"].gather(-1, order)
            data.batch["attention_mask"][:, -mask.shape[-1] :] = mask.gather(-1, order)
        return data

    monkeypatch.setattr(NaiveRewardManager, "__call__", lambda self, data: call(self, without_tools(data)))
    monkeypatch.setattr(naive.NaiveRewardManager, "run_single", lambda self, data: run(self, without_tools(data)))


mutant("tool-output-in-reward", "absent")(reads_policy_alone)


@mutant("tool-output-in-reward", "changed")
def scores_fail(monkeypatch):
    from verl.workers.reward_manager import naive

    monkeypatch.setattr(naive, "default_compute_score", fails)
