"""Find out what a file is by its first bytes, and open it as columns; nothing in it is executed."""

from __future__ import annotations

import mmap
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pytest_rlregress.audit import pickles
from pytest_rlregress.audit.columns import BatchError
from pytest_rlregress.audit.pickles import DumpedProto, NonTensor, NumpyArray, PickleError, RefusedName
from pytest_rlregress.audit.tables import BatchTable, ParquetTable, TensorTable

FORMATS = (
    "a DataProto that verl wrote (save_to_disk), a TensorDict or a dict of tensors that torch.save wrote, safetensors, "
    "or parquet"
)
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def open_table(path: Path) -> BatchTable:
    """Open a batch.

    Raises:
        BatchError: It cannot be read; the message says why and what is allowed.
    """
    try:
        if path.is_dir():
            raise BatchError(f"it is a folder. A batch is one file: {FORMATS}")
        with path.open("rb") as file:
            begin = file.read(16)
            if not begin:
                raise BatchError(f"it is empty. A batch is {FORMATS}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BatchError(f"it cannot be read: {error.strerror or error}") from error
    if begin[:4] == b"PAR1":
        return ParquetTable(str(path))
    try:
        return _tensors(path, begin, memoryview(mapped))
    except RefusedName as refused:
        raise BatchError(
            f"it is a pickle that asks for {refused}, which a batch of tensors does not need: nothing of it was "
            "imported or called, and it is not read. Where that is your own: write tensors only, as "
            "torch.save(dict(batch.batch), path), or leave that column out"
        ) from refused
    except (PickleError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise BatchError(f"{error}. A batch is {FORMATS}") from error


def _tensors(path: Path, begin: bytes, data: memoryview) -> BatchTable:
    if begin[:4] == b"PK\x03\x04":
        return _table(read_archive(path), "torch.save")
    if begin.startswith(_OLD_TORCH[: len(begin)]) and len(begin) > 2:
        raise PickleError("torch.save wrote it in the form of before torch 1.6; load it and save it again")
    if begin[:1] == b"\x80":
        columns, meta = read_proto(data)
        return _table(columns, "verl's DataProto", meta)
    if begin[8:9] == b"{":
        return TensorTable("safetensors", _safetensors(path), {})
    raise PickleError("it is none of the formats that are known")


def read_archive(path: Path) -> Any:
    """Return what ``torch.save`` wrote: tensors are views into the file, a TensorDict is a dict.

    Raises:
        PickleError: It is no such archive, is cut off, or holds more than data.
    """
    import torch

    allowed: Any = [(make, name) for name, make in pickles.KNOWN.items() if not name.startswith("torch.")]
    try:
        with torch.serialization.safe_globals(allowed):
            if refused := torch.serialization.get_unsafe_globals_in_checkpoint(path):
                raise RefusedName(refused[0])
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickles.ERRORS as error:
        raise PickleError(f"its zip archive is cut off or malformed, or not torch.save's: {error}") from error


def read_proto(data: memoryview) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns and the meta info of what ``DataProto.save_to_disk`` wrote, in either of its two ways.

    Raises:
        PickleError: It is another pickle, is cut off, or holds more than data.
    """
    proto = pickles.read(data)
    if not isinstance(proto, DumpedProto):
        raise PickleError(f"it is a pickle of a {type(proto).__name__}, and no batch")
    try:
        batch, columns, meta = proto.state
        if isinstance(batch, bytes | memoryview):
            with NamedTemporaryFile(prefix="rlregress-") as file:  # of which torch maps the tensors
                file.write(batch)
                file.flush()
                batch = read_archive(Path(file.name))
        elif isinstance(batch, tuple):  # VERL_DATAPROTO_SERIALIZATION_METHOD=numpy
            batch = {key: _encoded(key, *item) for key, item in batch[2].items()}
        return {**(columns or {}), **(batch or {})}, dict(meta or {})
    except pickles.ERRORS as error:
        raise PickleError(f"its batch is cut off or malformed: {error}") from error


def _encoded(key: str, *parts: Any) -> Any:
    import torch

    if len(parts) != 3:
        raise PickleError(f"{key} is a nested tensor: pad it and write the batch again")
    dtype, shape, array = parts
    return array.value.view(getattr(torch, str(dtype).removeprefix("torch."))).view(tuple(shape))


def _table(parts: Any, form: str, meta: dict[str, Any] | None = None) -> BatchTable:
    if not isinstance(parts, dict):
        raise PickleError(f"it has a {type(parts).__name__} where a dict of tensors should be")
    columns, rest = {}, {}
    for name, part in parts.items():
        value = part.value if isinstance(part, NonTensor | NumpyArray) else part
        if isinstance(value, list | tuple):
            columns[str(name)] = list(value)
        elif hasattr(value, "dim") and value.dim():
            columns[str(name)] = value.detach()
        elif isinstance(value, int | float | str):
            rest[str(name)] = value
    if not columns:
        raise PickleError("it has no tensors")
    return TensorTable(form, columns, rest | (meta or {}))


def _safetensors(path: Path) -> dict[str, Any]:
    try:
        import safetensors
    except ImportError as error:
        raise BatchError("it is safetensors, which is not installed here: pip install safetensors") from error
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except (safetensors.SafetensorError, *pickles.ERRORS) as error:
        raise PickleError(f"its safetensors are cut off or malformed: {error}") from error
    return {name: tensor for name, tensor in tensors.items() if tensor.dim()}
