"""Twins of scenarios/batch."""

from __future__ import annotations

from pytest_rlregress.remedies.batch import align_batches
from twins import broken, twin


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


@twin("dataproto-concat-keys", "absent")
def concat_takes_the_union(monkeypatch):
    from verl.protocol import DataProto

    concat = DataProto.concat
    monkeypatch.setattr(DataProto, "concat", lambda data: concat(align_batches(data, [False] * len(data))))


@twin("dataproto-concat-keys", "changed")
def concat_fails_otherwise(monkeypatch):
    from verl.protocol import DataProto

    def concat(data):
        raise TypeError("concat() takes batches of one schema")

    monkeypatch.setattr(DataProto, "concat", concat)
