import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import np, torch

pytestmark = pytest.mark.needs("verl")

PROMPTS = {"uid": ["a", "b"]}
REPLAYED = {"uid": ["c", "d"], "memory_id": [7, 8]}


def batch(columns, tensors=True):
    """A DataProto of these non-tensor columns and, with ``tensors``, of one tensor of as many rows."""
    from verl.protocol import DataProto

    rows = len(next(iter(columns.values())))
    arrays = {}
    for key, values in columns.items():
        arrays[key] = np.empty(rows, dtype=object)
        arrays[key][:] = values
    return DataProto.from_dict({"responses": torch.arange(rows * 3).view(rows, 3)} if tensors else {}, arrays)


def concat_and_look(batches):
    """The failing act, then a look at what no check of DataProto sees: every column has a value for every row."""
    from verl.protocol import DataProto

    rows = sum(len(one) for one in batches)
    joined = DataProto.concat(batches)
    for key, column in joined.non_tensor_batch.items():
        assert len(column) == rows, f"column {key!r} of {len(column)} rows in a batch of {rows}"
    return joined


@pytest.mark.reproduces("dataproto-concat-keys")
@pytest.mark.parametrize("tensors", [True, False], ids=["tensors", "no-tensors"])
@pytest.mark.parametrize("extra_key", ["first", "later"])
def test_concat_of_differing_keys(extra_key, tensors):
    fresh, replayed = batch(PROMPTS, tensors), batch(REPLAYED, tensors)
    with act():
        concat_and_look([replayed, fresh] if extra_key == "first" else [fresh, replayed])


def contents(batches):
    tensors = [
        {key: one.tolist() for key, one in ({} if batch.batch is None else batch.batch).items()} for batch in batches
    ]
    columns = [{key: column.tolist() for key, column in batch.non_tensor_batch.items()} for batch in batches]
    return tensors, columns, [dict(batch.meta_info) for batch in batches]


def check_apart(batches, aligned):
    """What is written to a new batch is in no other, old or new."""
    for place, new in enumerate(aligned):
        others = [*batches, *aligned[:place], *aligned[place + 1 :]]
        before = contents(others)
        new.meta_info["step"] = place
        for column in new.non_tensor_batch.values():
            column[:] = "written"
        if new.batch is not None:
            new.batch["written"] = new.batch["responses"]
        assert contents(others) == before


VALUES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@st.composite
def columns(draw):
    rows = draw(st.integers(1, 4))
    keys = ["uid", *draw(st.sets(st.sampled_from(["memory_id", "reward", "tools"])))]
    return {key: draw(st.lists(VALUES, min_size=rows, max_size=rows)) for key in keys}


@pytest.mark.guards("dataproto-concat-keys")
@given(drawn=st.lists(st.tuples(columns(), st.booleans()), min_size=1, max_size=4), tensors=st.booleans())
@EXAMPLES
def test_any_batches_concatenate(subject, drawn, tensors):
    """No value is lost, moved or invented, and nothing of the given batches changes."""
    columns_of, flags = zip(*drawn, strict=True)
    replayed = list(flags)
    batches = [batch(columns, tensors) for columns in columns_of]
    for one in batches:
        one.meta_info["temperature"] = 0.5
    before = contents(batches)
    with act():
        aligned = subject(batches, replayed)
    joined = concat_and_look(aligned)
    assert contents(batches) == before, "the remedy changed the caller's batches"
    keys = {key for columns in columns_of for key in columns}
    assert set(joined.non_tensor_batch) == keys | {"from_memory_db"}
    assert all(column.dtype == object for one in aligned for column in one.non_tensor_batch.values())
    rows = [
        {key: columns[key][row] if key in columns else None for key in keys} | {"from_memory_db": flag}
        for columns, flag in zip(columns_of, replayed, strict=True)
        for row in range(len(columns["uid"]))
    ]
    seen = [{key: joined.non_tensor_batch[key][row] for key in joined.non_tensor_batch} for row in range(len(joined))]
    assert seen == rows
    assert joined.meta_info["temperature"] == 0.5
    if tensors:
        assert joined.batch["responses"].tolist() == [row for one in before[0] for row in one["responses"]]
        for old, new in zip(batches, aligned, strict=True):
            assert new.batch["responses"].data_ptr() == old.batch["responses"].data_ptr(), "copied"
    check_apart(batches, aligned)


@pytest.mark.guards("dataproto-concat-keys")
@pytest.mark.parametrize("flags", [[], [True], [True, False, True]], ids=len)
def test_rejects_another_number_of_flags(subject, flags):
    with act(), pytest.raises(ValueError):  # noqa: PT011, the words are the subject's
        subject([batch(PROMPTS), batch(REPLAYED)], flags)
