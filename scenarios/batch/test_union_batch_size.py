"""DataProto.union compares the tensors' rows alone: a column of another length passes, and breaks later or never."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.fixtures.drawn import EXAMPLES


def batch(key, rows, **columns):
    """A DataProto of one tensor of ``rows`` rows. The columns come after its check of them, as an augmentation's do."""
    import numpy as np
    import torch
    from verl.protocol import DataProto

    made = DataProto.from_dict({key: torch.zeros(rows, 3)})
    made.non_tensor_batch |= {name: np.array(range(length), dtype=object) for name, length in columns.items()}
    return made


@pytest.mark.reproduces("union-batch-size")
def test_augmented_rows():
    batch("prompts", 4).union(batch("responses", 6))


@pytest.mark.reproduces("union-batch-size")
@pytest.mark.parametrize("length", [2, 6])
def test_augmented_column(length):
    united = batch("prompts", 4, uid=4).union(batch("responses", 4, memory_id=length))
    odd = [len(column) for column in united.non_tensor_batch.values() if len(column) != len(united)]
    assert not odd, f"silent: united {len(united)} rows with a column of {odd[0]}"


@pytest.mark.reproduces("union-batch-size")
@pytest.mark.parametrize("later", ["chunk", "rows"])
def test_found_out_later(later):
    united = batch("prompts", 4, uid=4).union(batch("responses", 4, memory_id=2))
    united.chunk(2) if later == "chunk" else united[[0, 3]]


def state(one):
    columns = {key: (id(column), column.tolist()) for key, column in one.non_tensor_batch.items()}
    return {key: tensor.tolist() for key, tensor in one.batch.items()}, columns, dict(one.meta_info)


SIZES = st.integers(1, 3)


@pytest.mark.guards("union-batch-size")
@given(rows=st.tuples(SIZES, SIZES), columns=st.tuples(SIZES, SIZES), which=st.sampled_from(["", "0", "1", "01"]))
@settings(EXAMPLES, max_examples=100)
def test_any_sizes(subject, rows, columns, which):
    """``which`` of the two batches have a column, of its own length."""
    first = batch("prompts", rows[0], **({"uid": columns[0]} if "0" in which else {}))
    second = batch("responses", rows[1], **({"memory_id": columns[1]} if "1" in which else {}))
    sizes = {*rows, *(columns[int(index)] for index in which)}
    before = state(first), state(second)
    if len(sizes) == 1:
        united = subject(first, second)
        assert united is first
        assert state(second) == before[1], "changes the other batch"
        assert set(united.batch.keys()) == {"prompts", "responses"}
        assert set(united.non_tensor_batch) == {["uid", "memory_id"][int(index)] for index in which}
    else:
        with pytest.raises(ValueError, match=r"\d") as refused:
            subject(first, second)
        told = {int(number) for number in re.findall(r"\d+", str(refused.value))}
        assert len(told & sizes) >= 2, f"the message does not say which sizes differ: {refused.value}"
        assert (state(first), state(second)) == before, "refused, and yet changed"


@pytest.mark.guards("union-batch-size")
def test_union_is_still_a_union(subject):
    first, second = batch("prompts", 4, uid=4), batch("responses", 4, uid=4, memory_id=4)
    second.meta_info["step"] = 3
    united = subject(first, second)
    assert (len(united), united.meta_info) == (4, {"step": 3})
    assert [len(part) for part in united.chunk(2)] == [2, 2]
    for rows in (2, 6):
        with pytest.raises(ValueError, match=f"'uid' of the first has {rows} rows"):
            subject(batch("prompts", 4, uid=rows), batch("responses", 4, uid=rows))
        with pytest.raises(ValueError, match=f"'memory_id' of the second has {rows} rows"):
            subject(batch("prompts", 4, uid=4), batch("responses", 4, uid=4, memory_id=rows))
    with pytest.raises(AssertionError, match="uid"):  # of the same key, different values
        subject(batch("prompts", 2, uid=2), batch("responses", 2, uid=2)[[1, 0]])
