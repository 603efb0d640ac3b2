"""Columns of a batch, read in pieces of some rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pytest_rlregress.audit.batch import BatchError, Ragged
from pytest_rlregress.util.text import plural
from pytest_rlregress.util.units import GIB

if TYPE_CHECKING:
    import pyarrow as pa

#: What a piece has of the columns that are read; checking takes about as much again.
PIECE_BYTES = 48 * 2**20
#: A row group of parquet is read whole.
_ROW_GROUP_BYTES = 2 * GIB


class BatchTable(Protocol):
    """A batch in a file.

    Attributes:
        form: What wrote it, in words.
        rows: Of each of its columns.
        meta: What it says of itself: ``eos_token_id``, ``temperature``.
        ragged: Whether its rows are without padding.
    """

    form: str
    rows: Mapping[str, int]
    meta: Mapping[str, Any]
    ragged: bool

    def pieces(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Some rows after the other, of the columns in ``columns``, by its keys."""
        ...


class TensorTable:
    """Tensors that are views into a file, and lists; form, columns and meta as of ``BatchTable``."""

    ragged = False

    def __init__(self, form: str, columns: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.form, self._columns = form, columns
        self.meta: Mapping[str, Any] = meta
        self.rows: Mapping[str, int] = {name: len(value) for name, value in columns.items()}

    def pieces(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """As ``BatchTable.pieces``."""
        values = {name: self._columns[column] for name, column in columns.items()}
        rows = len(next(iter(values.values())))
        row_bytes = sum(one[0].numel() * one.element_size() for one in values.values() if not isinstance(one, list))
        step = max(1, PIECE_BYTES // max(1, row_bytes))
        for begin in range(0, rows, step):
            yield {name: value[begin : begin + step] for name, value in values.items()}


class ParquetTable:
    """Columns of parquet: numbers, lists of numbers, texts.

    Raises:
        BatchError: pyarrow is not installed, the file is not whole, or a row group is too large.
    """

    form = "parquet"
    ragged = True

    def __init__(self, path: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise BatchError("it is parquet, and pyarrow is not installed here: pip install pyarrow") from error
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise BatchError(f"it is cut off or malformed: {error}") from error
        metadata = self._file.metadata
        names = self._file.schema_arrow.names
        self.rows: Mapping[str, int] = dict.fromkeys(names, metadata.num_rows)
        self.meta: Mapping[str, Any] = {}
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=0)
        if largest > _ROW_GROUP_BYTES:
            raise BatchError(
                f"it has a row group of {largest / GIB:.1f} GiB, and a row group is read whole: at most "
                f"{_ROW_GROUP_BYTES / GIB:.0f} GiB. Write it with a smaller row_group_size"
            )
        self._row_bytes = max(1, sum(group.total_byte_size for group in groups) // max(1, metadata.num_rows))

    def pieces(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """As ``BatchTable.pieces``."""
        import pyarrow

        step = max(1, PIECE_BYTES // self._row_bytes)
        wanted = list(dict.fromkeys(columns.values()))
        try:
            for batch in self._file.iter_batches(batch_size=step, columns=wanted):
                found = {
                    column: _column(column, batch.column(batch.schema.get_field_index(column))) for column in wanted
                }
                yield {name: found[column] for name, column in columns.items()}
        except (pyarrow.ArrowException, OSError) as error:
            raise BatchError(f"it is cut off or malformed: {error}") from error


def _column(name: str, values: pa.Array) -> Any:
    """A tensor, ``Ragged``, or a list of texts or other objects."""
    import pyarrow as pa
    import pyarrow.compute
    import torch

    kind = values.type
    if _is_number(kind):
        if values.null_count:
            if not pa.types.is_floating(kind):
                values = values.cast(pa.float64())
            values = values.fill_null(float("nan"))
        return torch.from_numpy(values.to_numpy(zero_copy_only=False).copy())
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not _is_number(kind.value_type):
        return values.to_pylist()
    if values.null_count:
        count = plural(values.null_count, "row")
        raise BatchError(f"the column {name} has no list in {count}; where there is no token the list is empty")
    lengths = torch.from_numpy(pa.compute.list_value_length(values).to_numpy(zero_copy_only=False).copy()).long()
    inner = values.flatten()
    if inner.null_count:
        inner = inner.cast(pa.float64()).fill_null(float("nan"))
    return Ragged(torch.from_numpy(inner.to_numpy(zero_copy_only=False).copy()), lengths)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))
