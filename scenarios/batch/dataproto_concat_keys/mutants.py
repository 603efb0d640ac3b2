"""Broken remedies of dataproto-concat-keys, and stacks that differ."""

from __future__ import annotations

from mutants import broken, fails, mutant
from pytest_rlregress.remedies.batch import align_batches


@broken(only="test_aligned")
def untouched(batches, from_memory_db):
    return list(batches)


@broken(only="test_aligned")
def only_common_keys(batches, from_memory_db):
    aligned = align_batches(batches, from_memory_db)
    for one in aligned:
        one.non_tensor_batch.pop("memory_id", None)
    return aligned


@mutant("absent")
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


@mutant("changed")
def concat_fails_otherwise(monkeypatch):
    from verl.protocol import DataProto

    monkeypatch.setattr(DataProto, "concat", fails)
