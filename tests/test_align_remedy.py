"""Broken twins of the remedy for dataproto-concat-keys: the guard's check must catch each."""

from __future__ import annotations

import pytest

from pytest_rlregress import remedies
from pytest_rlregress.scenarios.batch.test_dataproto_concat_keys import PROMPTS, REPLAYED, check_aligned

pytestmark = [pytest.mark.isolated(group="align"), pytest.mark.needs("verl", "tensordict", "torch")]


def untouched(batches, from_memory_db):
    return list(batches)


def only_common_keys(batches, from_memory_db):
    aligned = remedies.align_batches(batches, from_memory_db)
    for one in aligned:
        one.non_tensor_batch.pop("memory_id")
    return aligned


def filled_with_zero(batches, from_memory_db):
    aligned = remedies.align_batches(batches, from_memory_db)
    for one in aligned:
        one.non_tensor_batch["memory_id"] = one.non_tensor_batch["memory_id"].copy()
        one.non_tensor_batch["memory_id"][[v is None for v in one.non_tensor_batch["memory_id"]]] = 0
    return aligned


def wrong_provenance(batches, from_memory_db):
    return remedies.align_batches(batches, [not flag for flag in from_memory_db])


def reordered(batches, from_memory_db):
    return remedies.align_batches(batches, from_memory_db)[::-1]


def in_place(batches, from_memory_db):
    aligned = remedies.align_batches(batches, from_memory_db)
    for one, new in zip(batches, aligned, strict=True):
        one.non_tensor_batch.update(new.non_tensor_batch)
    return aligned


@pytest.mark.parametrize("tensors", [True, False], ids=["tensors", "no-tensors"])
@pytest.mark.parametrize(
    "twin",
    [untouched, only_common_keys, filled_with_zero, wrong_provenance, reordered, in_place],
    ids=lambda f: f.__name__,
)
def test_twin_is_caught(twin, tensors):
    check_aligned(remedies.align_batches, [REPLAYED, PROMPTS], [True, False], tensors)
    with pytest.raises(AssertionError):
        check_aligned(twin, [REPLAYED, PROMPTS], [True, False], tensors)
