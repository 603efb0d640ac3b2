"""Find out what a file is by its first bytes, and open it as columns; nothing in it is executed."""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import Any

from pytest_rlregress.audit import names, torch_files
from pytest_rlregress.audit.columns import BatchError
from pytest_rlregress.audit.pickles import PickleError, RefusedName
from pytest_rlregress.audit.tables import BatchTable, ParquetTable, TensorTable

FORMATS = (
    "a DataProto that verl wrote (save_to_disk), a TensorDict or a dict of tensors that torch.save wrote, safetensors, "
    "or parquet"
)
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_HEADER_BYTES = 100 * 2**20  # of safetensors: the limit of its own library
_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
}  # fmt: skip


def open_table(path: Path) -> BatchTable:
    """Open a batch.

    Raises:
        BatchError: It cannot be read; the message says why and what is allowed.
    """
    try:
        if path.is_dir():
            raise BatchError(f"it is a folder. A batch is one file: {FORMATS}")
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise BatchError(f"it is empty. A batch is {FORMATS}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BatchError(f"it cannot be read: {error.strerror or error}") from error
    begin = mapped[:16]
    if begin[:4] == b"PAR1":
        return ParquetTable(str(path))
    try:
        return _tensors(memoryview(mapped), begin, mapped)
    except RefusedName as refused:
        raise BatchError(
            f"it is a pickle that asks for {refused}, which a batch of tensors does not need: nothing of it was "
            "imported or called, and it is not read. Where that is your own: write tensors only, as "
            "torch.save(dict(batch.batch), path), or leave that column out"
        ) from refused
    except (PickleError, RuntimeError, ValueError, TypeError) as error:
        raise BatchError(f"{error}. A batch is {FORMATS}") from error


def _tensors(data: memoryview, begin: bytes, file: mmap.mmap) -> BatchTable:
    if begin[:4] == b"PK\x03\x04":
        return _table(torch_files.read_archive(data), "torch.save", file)
    if begin.startswith(_OLD_TORCH[: len(begin)]) and len(begin) > 2:
        raise PickleError("torch.save wrote it in the form of before torch 1.6; load it and save it again")
    if begin[:1] == b"\x80":
        return _table(torch_files.read_proto(data), "", file)
    size = int.from_bytes(begin[:8], "little")
    if begin[8:9] == b"{" and size <= _HEADER_BYTES:
        return TensorTable("safetensors", _safetensors(data, size), {}, file)
    raise PickleError("it is none of the formats that are known")


def _table(content: Any, form: str, file: mmap.mmap) -> BatchTable:
    meta: dict[str, Any] = {}
    parts: Any = content
    if isinstance(content, names.DumpedProto):
        form, meta = "verl's DataProto", dict(content.meta or {})
        parts = {**(content.columns or {}), **(content.batch or {})}
    if not isinstance(parts, dict):
        raise PickleError(f"it has a {type(parts).__name__} where a dict of tensors should be")
    columns, rest = {}, {}
    for name, part in parts.items():
        value = _value(part)
        if isinstance(value, list) or (hasattr(value, "dim") and value.dim()):
            columns[str(name)] = value
        elif isinstance(value, int | float | str):
            rest[str(name)] = value
    if not columns:
        raise PickleError("it has no tensors")
    return TensorTable(form, columns, rest | meta, file)


def _value(part: Any) -> Any:
    """A tensor or a list of what the pickle has; numpy's arrays of numbers become tensors."""
    if isinstance(part, names.NonTensor):
        part = part.value
    if isinstance(part, names.NumpyArray):
        return part.values if isinstance(part.values, list) else part.values.view(part.shape)
    return list(part) if isinstance(part, tuple) else part


def _safetensors(data: memoryview, size: int) -> dict[str, Any]:
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            if not 0 <= first <= last <= len(data) - 8 - size:
                raise PickleError(f"it is cut off: {name} ends behind the end of the file")
            if entry["dtype"] not in _SAFETENSORS:
                raise PickleError(f"{name} has the dtype {entry['dtype']}, which no column of a batch has")
            part = data[8 + size + first : 8 + size + last]
            tensors[name] = names.tensor_of(part, _SAFETENSORS[entry["dtype"]], entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise PickleError(f"its header of safetensors is cut off or malformed: {error}") from error
    return {name: tensor for name, tensor in tensors.items() if tensor.dim()}
