"""Remedies for batches: columns of objects, rows of unequal length, data sets, jagged tensors."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from tensordict import TensorDict
    from verl.protocol import DataProto

__all__ = [
    "align_batches",
    "json_columns",
    "object_column",
    "restore_ragged",
]


def align_batches(batches: Sequence[DataProto], from_memory_db: Sequence[bool]) -> list[DataProto]:
    """Make batches concatenable whose non-tensor keys differ.

    Args:
        batches: verl ``DataProto`` objects, in any order; left as they are.
        from_memory_db: For each batch, whether it was replayed from the memory database.

    Returns:
        New batches over the same tensors. Each has the union of the non-tensor keys as object arrays of shape
        ``[batch]``; rows that had no such key hold None. The bool column ``from_memory_db`` tells replayed rows.

    Raises:
        ValueError: ``batches`` and ``from_memory_db`` differ in length.
    """
    if len(batches) != len(from_memory_db):
        raise ValueError(f"{len(batches)} batches but {len(from_memory_db)} provenance flags")
    keys = list(dict.fromkeys(key for batch in batches for key in batch.non_tensor_batch))
    aligned = []
    for batch, replayed in zip(batches, from_memory_db, strict=True):
        rows = len(batch)
        columns = {key: object_column(batch.non_tensor_batch.get(key, [None] * rows)) for key in keys}
        columns["from_memory_db"] = object_column([replayed] * rows)
        tensors = None if batch.batch is None else batch.batch.copy()
        aligned.append(type(batch)(batch=tensors, non_tensor_batch=columns, meta_info=dict(batch.meta_info)))
    return aligned


def object_column(values: Iterable[Any]) -> np.ndarray:
    """Return a non-tensor column of a ``DataProto``: one Python object a row, whatever the rows hold.

    ``np.array(values)`` makes text of fixed width or numbers of them, and refuses lists of differing lengths;
    ``np.array(values, dtype=object)`` still makes lists of one length a second dimension.

    Args:
        values: One value a row. Of an array, the Python objects that its rows amount to.

    Returns:
        Shape ``[rows]``, dtype object.
    """
    import numpy as np

    rows = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return np.fromiter(rows, dtype=object)


def json_columns(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Dataset:
    """Make a data set of which some columns are kept as JSON text and read as the values that they are.

    Arrow has one type for a column: a dict in it has the keys that any row's has, the missing ones None.

    Args:
        rows: Left as they are. Of a row that lacks a column the value is None.
        columns: Those whose dicts differ from row to row, such as messages with tool calls, or tools.

    Returns:
        With a transform that reads the text: rows, slices, and what is mapped or filtered over the data set get the
        values that were given. In files it is text. What a mapped function returns under the name of such a column is
        Arrow's again.

    Raises:
        TypeError: A value that JSON does not hold, with its row and column.
    """
    from datasets import Dataset

    names = dict.fromkeys(name for row in rows for name in row)  # from_list takes those of the first row alone
    written: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        written.append({name: row.get(name) for name in names})
        for column in (column for column in columns if column in row):
            try:
                written[-1][column] = json.dumps(row[column])
            except TypeError as error:
                raise TypeError(f"row {number}, column {column!r}: {error}") from None
    return Dataset.from_list(written).with_transform(functools.partial(_read_json, frozenset(columns)))


def _read_json(columns: frozenset[str], batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    read = {
        name: [None if text is None else json.loads(text) for text in batch[name]] for name in columns & batch.keys()
    }
    return batch | read


def restore_ragged(batch: TensorDict, ragged: Mapping[str, int]) -> TensorDict:
    """Give jagged tensors of a batch that was sent their ragged dimension back.

    tensordict before 0.13 takes the first after the rows for it where a batch was consolidated and pickled. The shape
    is made right too: setting ``_ragged_idx``, as verl does, leaves it wrong and breaks rows of one length. Those, a
    single row too, torch joins in the first dimension after the rows: they lose nothing and stay as they are.

    Args:
        batch: As it came; left as it is.
        ragged: The dimension that differs from row to row, by name: ``{"position_ids": 2}`` for position ids of
            ``[rows, 3, tokens]``. A name that is not in the batch is passed over.

    Returns:
        A new batch over the same storage.

    Raises:
        ValueError: A tensor is not jagged, or that dimension has not as many elements as its rows have together.
    """
    import torch

    restored = batch.copy()
    for name, dimension in ragged.items():
        if name not in batch.keys():  # noqa: SIM118 - a TensorDict's own `in` takes no name
            continue
        tensor = batch[name]
        if tensor.layout != torch.jagged:
            raise ValueError(f"{name!r} isn't a jagged tensor")
        values, offsets = tensor.values(), tensor.offsets()
        there, wanted = list(values.shape), int(offsets[-1])
        if there[0] == wanted and (offsets.diff() == offsets[1]).all():
            continue  # of one length; of others the first dimension is the documented one
        if not 1 <= dimension <= len(there) or there[dimension - 1] != wanted:
            raise ValueError(
                f"dimension {dimension} of {name!r} isn't the ragged one: the values have the shape {there}, the rows "
                f"add up to {wanted}"
            )
        restored[name] = torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dimension)
    return restored
