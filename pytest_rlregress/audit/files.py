"""Open a batch as columns that are read in pieces; nothing in it is executed."""

from __future__ import annotations

import json
import math
import mmap
import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pytest_rlregress.audit import pickles
from pytest_rlregress.audit.batch import NAMES, BatchError
from pytest_rlregress.util.files import open_regular

FORMATS = (
    "a DataProto that verl wrote (save_to_disk), a TensorDict or a dict of tensors that torch.save wrote, safetensors, "
    "or the texts and rewards that TRL (log_completions, parquet) and verl (rollout_data_dir, JSONL) log"
)
#: What a piece has of the columns that are read; checking takes about as much again.
PIECE_BYTES = 48 * 2**20
# A column that was expanded, and a compressed one, are larger than what the file has of them; up to so many times, or
# so many bytes, that is believed.
_EXPANDED, _SMALL = 64, 2**26
_TENSORS_ONLY = "write the tensors alone: torch.save(dict(batch.batch), path)"
# What torch, zipfile, pickle, pyarrow and json raise for damaged files.
_ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError, EOFError),
    *(OSError, MemoryError, pickle.UnpicklingError, struct.error),
)


@dataclass(frozen=True)
class BatchFile:
    """A batch in a file.

    Attributes:
        form: The program that wrote it.
        columns: Tensors that are views into the file, and lists.
        meta: The values that hold for the whole batch: ``eos_token_id``, ``temperature``.
    """

    form: str
    columns: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def pieces(self, columns: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the columns in ``columns`` by its keys, some rows at a time."""
        values = {name: self.columns[column] for name, column in columns.items()}
        rows = len(next(iter(values.values())))
        row_bytes = sum(one[0].numel() * one.element_size() for one in values.values() if not isinstance(one, list))
        step = max(1, PIECE_BYTES // max(1, row_bytes))
        for begin in range(0, rows, step):
            yield {name: value[begin : begin + step] for name, value in values.items()}


def open_batch(path: Path) -> BatchFile:
    """Open a batch.

    Raises:
        BatchError: It can't be read; the message says why and what is allowed.
    """
    try:
        if path.is_dir():
            raise BatchError(f"it is a folder. A batch is one file: {FORMATS}")
        with open(open_regular(path), "rb") as file:
            begin = file.read(16)
            if not begin:
                raise BatchError(f"it is empty. A batch is {FORMATS}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BatchError(f"it cannot be read: {error.strerror or error}") from error
    try:
        return _open(path, begin, mapped)
    except pickles.RefusedName as refused:
        if str(refused).startswith("torch._utils._rebuild_"):  # any other function is named, torch's too
            raise BatchError(
                "it is a plain pickle of tensors, which can't be read without calling what it names. Write it with "
                "torch: torch.save(batch, path)"
            ) from refused
        raise BatchError(
            f"it is a pickle that asks for {refused}, which a batch of tensors does not need: nothing of it was "
            f"imported or called, and it is not read. Where that is your own, leave that column out, or {_TENSORS_ONLY}"
        ) from refused
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "torch":
            raise BatchError(
                f"its tensors cannot be read: torch isn't installed here ({error}): pip install torch, or run it "
                "in the trainer's environment"
            ) from error
        raise BatchError(f"{error.name} is not installed here: pip install {error.name}") from error
    except _ERRORS as error:
        why = str(error) or type(error).__name__
        raise BatchError(f"it is cut off, malformed or no batch: {why}. A batch is {FORMATS}") from error


def _open(path: Path, begin: bytes, mapped: mmap.mmap) -> BatchFile:
    if begin[:4] == b"PK\x03\x04":
        parts = read_archive(path)
        pickles.check_nodes(parts, len(mapped))
        return _batch_of("torch.save", parts, size=len(mapped))
    if begin[:4] == b"PAR1":
        return _batch_of("parquet", _read_parquet(path, len(mapped)))
    if begin[:1] == b"\x80":
        columns, meta = read_proto(mapped)
        return _batch_of("verl's DataProto", columns, meta, len(mapped))
    if begin[:1] == b"{":
        return _batch_of("JSONL", _read_lines(path))
    if begin[8:9] == b"{":
        return _batch_of("safetensors", _read_safetensors(path))
    raise BatchError(f"it is none of the formats that are known. A batch is {FORMATS}")


def _batch_of(form: str, parts: Any, meta: Mapping[str, Any] | None = None, size: int | None = None) -> BatchFile:
    """Return tensors and lists as columns, and plain values as what holds for the whole batch.

    Args:
        form: The program that wrote it.
        parts: What is in the file.
        meta: More values for the whole batch.
        size: Of the file, in bytes, where its tensors may say that they are larger than what it has of them.
    """
    if not isinstance(parts, dict):
        raise ValueError(f"it has a {type(parts).__name__} where a dict of tensors should be")
    columns: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, part in parts.items():
        value = part.value if isinstance(part, NonTensor) else part
        if isinstance(value, list | tuple):
            columns[str(name)] = list(value)
        elif hasattr(value, "dim") and value.dim():
            if size is not None:
                _check_tensor(str(name), value, size)
            columns[str(name)] = value.detach()
        elif isinstance(value, int | float | str):
            values[str(name)] = value
    if not columns:
        raise ValueError("it has no tensors")
    return BatchFile(form, columns, {**values, **(meta or {})})


def _check_tensor(name: str, value: Any, size: int) -> None:
    """Raise a ValueError for a tensor that isn't dense numbers, or of which the file has next to nothing."""
    import torch

    if value.is_meta or value.layout != torch.strided or value.is_nested or value.is_quantized:
        raise ValueError(f"{name} isn't a tensor of plain numbers")
    claimed = value.numel() * value.element_size()
    if claimed > _EXPANDED * size + _SMALL:
        raise ValueError(f"{name} says that it has {claimed:,} bytes, and the file has {size:,}")


def read_archive(path: Path) -> Any:
    """Return what ``torch.save`` wrote: tensors are views into the file, a TensorDict is a dict.

    Raises:
        RefusedName: It holds more than data.
    """
    import torch

    allowed: Any = [(make, name) for name, make in _OF_TENSORDICT.items()]
    with torch.serialization.safe_globals(allowed):
        if refused := torch.serialization.get_unsafe_globals_in_checkpoint(path):
            raise pickles.RefusedName(refused[0])
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def read_proto(file: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns and the meta info of what ``DataProto.save_to_disk`` wrote.

    Raises:
        RefusedName: It holds more than data.
    """
    batch, columns, meta = pickles.read_state(file, "verl.protocol.DataProto")
    with NamedTemporaryFile(prefix="rlregress-") as archive:  # of which torch maps the tensors
        archive.write(batch)
        archive.flush()
        tensors = read_archive(Path(archive.name))
    return {**pickles.plain(columns or {}), **(tensors or {})}, pickles.plain(meta or {})


def _read_parquet(path: Path, size: int) -> dict[str, list[Any]]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    said = file.metadata
    claimed = sum(max(0, said.row_group(at).total_byte_size) for at in range(said.num_row_groups))
    if max(claimed, said.num_rows * said.num_columns) > _EXPANDED * size + _SMALL:
        raise ValueError(f"it says that it has {said.num_rows:,} rows and {claimed:,} bytes, and it has {size:,}")
    table = file.read()
    return _check_plain({name: table.column(name).to_pylist() for name in table.column_names})


def _read_lines(path: Path) -> dict[str, Any]:
    # At "\n" alone: a text may have other characters that split lines, such as U+2028.
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    names = dict.fromkeys(name for row in rows for name in row.keys())  # noqa: SIM118  # a list has no keys
    return _check_plain({name: [row.get(name) for row in rows] for name in names})


def _check_plain(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the columns of a logged rollout as they are: texts and numbers, which need no torch.

    Raises:
        BatchError: One is of tokens.
    """
    for name, values in columns.items():
        if name in _OF_TOKENS and any(isinstance(value, list) for value in values):
            raise BatchError(f"its column {name} has a list for each row, without padding: pad it, and {_TENSORS_ONLY}")
    return columns


def _read_safetensors(path: Path) -> dict[str, Any]:
    import safetensors

    try:
        with safetensors.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it isn't a mapping
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error


# What tensordict's pickles name, in archives that torch reads.


class NonTensor:
    """tensordict's ``NonTensorData`` and ``NonTensorStack``: objects in a TensorDict."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Keep the state."""
        self._state = state

    @property
    def value(self) -> Any:
        """The object; of a stack, a list of them."""
        if "tensordicts" in self._state:
            return [part.value for part in self._state["tensordicts"]]
        return self._state["non_tensordict"]["data"]


def _make(_: Any, state: dict[str, Any]) -> dict[str, Any]:
    return dict(state["_tensordict"])


def _make_consolidated(metadata: dict[str, Any], storage: Any) -> dict[str, Any]:
    """Return the parts of tensordict's ``consolidate()``: one storage, and where in it each tensor is."""
    import torch

    parts = {key: value for key, value in metadata.items() if key not in ("cls", "cls_metadata", "size")}
    found: dict[str, Any] = {key: value[0] for key, value in parts.pop("non_tensors", {}).items()}
    for key, (dtype, shape, start, stop, _) in parts.pop("leaves", {}).items():
        if key.startswith("<NJT"):
            raise ValueError("it has nested tensors: pad them (torch.nested.to_padded_tensor) and write them again")
        kind = getattr(torch, str(dtype).removeprefix("torch."), None)
        if not 0 <= start <= stop <= len(storage) or not isinstance(kind, torch.dtype):
            raise ValueError(f"{key} is outside of its storage, or of the dtype {dtype}")
        found[key] = storage[start : start + math.prod(shape) * kind.itemsize].view(kind).view(tuple(shape))
    return found | {key: _make_consolidated(part, storage) for key, part in parts.items()}


def _make_nothing(*_: Any) -> Any:
    raise TypeError("it calls what is only a name in a batch")


_OF_TENSORDICT = {
    "tensordict._td.TensorDict": _make_nothing,
    "tensordict._reductions._make_td": _make,
    "tensordict._reductions._rebuild_tensordict_files_consolidated": _make_consolidated,
    "tensordict.tensorclass.NonTensorData": NonTensor,
    "tensordict.tensorclass.NonTensorStack": NonTensor,
}
# A list in the column prompt is a conversation.
_OF_TOKENS = {column for names in NAMES.values() for column in names} - {"prompt"}
