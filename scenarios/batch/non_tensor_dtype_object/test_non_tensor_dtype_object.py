import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import np, torch

pytestmark = pytest.mark.needs("verl")


def batch(column):
    """A DataProto of this column and of one tensor of as many rows."""
    from verl.protocol import DataProto

    return DataProto.from_dict({"responses": torch.zeros(len(column), 3)}, {"column": column})


def joined(first, second):
    from verl.protocol import DataProto

    return DataProto.concat([batch(first), batch(second)]).non_tensor_batch["column"].tolist()


@pytest.mark.reproduces("non-tensor-dtype-object")
def test_ragged_lists():
    with act():
        batch(np.array([[1], [1, 2]]))


@pytest.mark.reproduces("non-tensor-dtype-object")
def test_lists_of_one_length_despite_the_dtype():
    with act():
        joined(np.array([[1, 2], [3, 4]], dtype=object), np.array([[1], [1, 2]], dtype=object))


@pytest.mark.reproduces("non-tensor-dtype-object")
@pytest.mark.parametrize(
    ("first", "second"), [(["a", "b"], [7, 8]), ([2**53 + 1, 8], [0.5, 0.25])], ids=["text-and-ids", "ids-and-numbers"]
)
def test_concat_of_two_types(first, second):
    with act():
        column = joined(np.array(first), np.array(second))
    if column != first + second:
        silent(f"{first + second} became {column}")


@pytest.mark.reproduces("non-tensor-dtype-object")
def test_longer_text_written_to_a_row():
    with act():
        rows = batch(np.array(["a", "b"])).non_tensor_batch["column"]
    rows[0] = "replayed"
    if rows[0] != "replayed":
        silent(f"'replayed' became {str(rows[0])!r}")


@pytest.mark.reproduces("non-tensor-dtype-object")
def test_union_of_equal_columns():
    with act():
        batch(np.array(["a", "b"])).union(batch(np.array(["a", "b"], dtype=object)))


ONE_LONG = ["x"] * 255 + ["x" * 16384]


@pytest.mark.reproduces("non-tensor-dtype-object")
def test_every_row_as_wide_as_the_widest():
    with act():
        size, characters = len(pickle.dumps(batch(np.array(ONE_LONG)))), sum(map(len, ONE_LONG))
    if not size < 4 * characters:
        silent(f"{characters} characters travel as {size} bytes")


TEXT = st.sampled_from(["", "a", "b\0", "replayed", "人"])
VALUES: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES |= st.lists(VALUES, max_size=2) | st.dictionaries(TEXT, VALUES, max_size=1)
COLUMNS = st.lists(VALUES, min_size=1, max_size=4)
KINDS = st.sampled_from([TEXT, st.integers(0, 9), st.lists(st.integers(0, 9), min_size=2, max_size=2)])


def check_column(subject, values):
    """One row for each value, and the value itself in it."""
    column = subject(values)
    assert (column.shape, column.dtype) == ((len(values),), object)
    assert all(row is value for row, value in zip(column, values, strict=True)), f"{values} became {column.tolist()}"
    return column


@pytest.mark.guards("non-tensor-dtype-object")
@given(first=COLUMNS | KINDS.flatmap(lambda kind: st.lists(kind, min_size=2, max_size=3)), second=COLUMNS)
@settings(EXAMPLES, max_examples=50)
def test_any_columns_travel(subject, first, second):
    with act():
        rows = joined(check_column(subject, first), check_column(subject, second))
    assert all(row is value for row, value in zip(rows, first + second, strict=True))
    united = batch(subject(first)).union(batch(subject(first)))
    united.non_tensor_batch["column"][0] = "longer than any before"
    assert united.non_tensor_batch["column"].tolist() == ["longer than any before", *first[1:]]


@pytest.mark.guards("non-tensor-dtype-object")
@pytest.mark.parametrize(
    "rows", [["a", "bcd"], [1, 2], [0.5, 2.0], [True, False], [[1, 2], [3, 4]]], ids=lambda rows: type(rows[0]).__name__
)
def test_arrays_made_elsewhere(subject, rows):
    with act():
        column = subject(np.array(rows))
    assert (column.shape, column.dtype) == ((2,), object)
    assert [(type(row), row) for row in column] == [(type(row), row) for row in rows]
    batch(column).union(batch(subject(rows)))


@pytest.mark.guards("non-tensor-dtype-object")
def test_only_the_long_row_is_long(subject):
    assert len(pickle.dumps(batch(subject(ONE_LONG)))) < 4 * sum(map(len, ONE_LONG))
