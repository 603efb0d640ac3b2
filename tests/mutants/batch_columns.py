"""Mutants of scenarios/batch: columns and data sets on their way."""

from __future__ import annotations

import math

from mutants import broken, mutant
from pytest_rlregress.remedies.batch import json_columns, restore_ragged
from pytest_rlregress.remedies.masks import trained_where_known


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
def index_alone(batch, ragged):
    """As verl does it: the rows are right, the shape is not."""
    for name, dimension in ragged.items():
        batch[name]._ragged_idx = dimension
    return batch


@broken("ragged-index-lost", only="test_rows_come_back")
def only_what_is_asked_for(batch, ragged):
    return restore_ragged(batch.select(*ragged), ragged)


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
            if "_ragged_idx" not in about and not offsets.is_meta:  # torch makes one of its own to look at
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
