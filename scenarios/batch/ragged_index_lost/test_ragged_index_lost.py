import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.needs("tensordict")

LENGTHS = (2, 5, 4)  # tokens a row, 11 in all


def position_ids(sections, lengths=LENGTHS):
    """Rows of shape [sections, tokens], as of a vision-language model: each a number of its own."""
    ends = [sections * sum(lengths[: row + 1]) for row in range(len(lengths))]
    return [
        torch.arange(end - sections * length, end).reshape(sections, length)
        for end, length in zip(ends, lengths, strict=True)
    ]


def batch_of(rows):
    from tensordict import TensorDict

    jagged = {
        "position_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
        "input_ids": torch.nested.as_nested_tensor([row[0] for row in rows], layout=torch.jagged),
    }
    return TensorDict({**jagged, "advantages": torch.arange(len(rows))}, batch_size=[len(rows)])


def sent(batch):
    return pickle.loads(pickle.dumps(batch.consolidate()))


def sent_by_verl(batch):
    from verl.protocol import DataProto

    return pickle.loads(pickle.dumps(DataProto(batch=batch))).batch


def shape_of(tensor):
    return ", ".join("ragged" if str(size).startswith("j") else str(size) for size in tensor.shape)


@pytest.mark.reproduces("ragged-index-lost")
@pytest.mark.parametrize("by", ["tensordict", pytest.param("verl", marks=pytest.mark.needs("verl"))])
@pytest.mark.parametrize("sections", [3, 16])
def test_sent(by, sections):
    batch = batch_of(position_ids(sections))
    with act():
        came = sent_by_verl(batch) if by == "verl" else sent(batch)
    before, after = shape_of(batch["position_ids"]), shape_of(came["position_ids"])
    if after != before:
        silent(f"position ids of [{before}] came as [{after}]")


@pytest.mark.reproduces("ragged-index-lost")
@pytest.mark.parametrize("sections", [3, 16])
def test_found_out_later(sections):
    """When the rows are taken apart, far from where they were sent."""
    with act():
        sent(batch_of(position_ids(sections)))["position_ids"].unbind()


def check(batch, rows):
    if len({row.shape for row in rows}) > 1:
        assert shape_of(batch["position_ids"]) == f"{len(rows)}, {len(rows[0])}, ragged"
    for tensor, wanted in (("position_ids", rows), ("input_ids", [row[0] for row in rows])):
        for came, row in zip(batch[tensor].unbind(), wanted, strict=True):
            assert (came.tolist(), came.dtype) == (row.tolist(), row.dtype)
    assert (batch["advantages"].tolist(), batch["advantages"].dtype) == ([*range(len(rows))], rows[0].dtype)


@pytest.mark.guards("ragged-index-lost")
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), sections=st.integers(1, 9))
@example(lengths=[6, 6], sections=3)  # as many tokens as both rows have sections
@settings(EXAMPLES, max_examples=40)
def test_rows_come_back(subject, lengths, sections):
    """Also sent on, and where nothing was lost: rows of one length, a single row."""
    rows = position_ids(sections, lengths)
    batch = batch_of(rows)
    with act():
        check(subject(batch, {"position_ids": 2}), rows)
    came = subject(sent(batch), {"position_ids": 2})
    check(came, rows)
    check(subject(sent(came), {"position_ids": 2, "input_ids": 1}), rows)


@pytest.mark.guards("ragged-index-lost")
def test_rejects_a_dimension_that_cannot_be_ragged(subject):
    batch = batch_of(position_ids(3))
    with act(), pytest.raises(ValueError, match=r"'position_ids'.*\b3\b.*\b11\b"):
        subject(batch, {"position_ids": 1})
    with pytest.raises(ValueError, match="'advantages'"):
        subject(batch, {"advantages": 1})
    with pytest.raises(ValueError, match="dimension 3 of 'position_ids'"):
        subject(batch, {"position_ids": 3})
    with pytest.raises(ValueError, match="dimension 0 of 'position_ids'"):
        subject(batch, {"position_ids": 0})


@pytest.mark.guards("ragged-index-lost")
def test_given_batch_stays_as_it_is(subject):
    came = sent(batch_of(position_ids(3)))
    before = {key: (shape_of(came[key]), came[key]._ragged_idx) for key in ("position_ids", "input_ids")}
    with act():
        restored = subject(came, {"pixel_values": 1, "position_ids": 2})
    assert {key: (shape_of(came[key]), came[key]._ragged_idx) for key in before} == before
    assert set(restored.keys()) == set(came.keys()), "a name that is not in the batch is passed over"
    assert shape_of(restored["position_ids"]) == "3, 3, ragged"
    for key in before:
        assert restored[key].values().data_ptr() == came[key].values().data_ptr(), "copied"
