"""Read the zip archives of ``torch.save`` and verl's dumps, as views into the file; nothing in them is executed."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

from pytest_rlregress.audit import names, pickles
from pytest_rlregress.audit.pickles import PickleError


def read_archive(data: memoryview) -> Any:
    """What ``torch.save`` wrote: tensors are views into ``data``, a TensorDict is a dict.

    Raises:
        PickleError: It is no such archive, is cut off, or holds more than data.
    """
    try:
        archive = zipfile.ZipFile(_Window(data))
        entries = {info.filename.partition("/")[2] or info.filename: _stored(data, info) for info in archive.infolist()}
    except (zipfile.BadZipFile, struct.error, OSError, ValueError, LookupError, RuntimeError) as error:
        raise PickleError(f"its zip archive is cut off or malformed: {error}") from error
    if "data.pkl" not in entries:
        raise PickleError(f"it is a zip archive without data.pkl, so torch.save did not write it: {list(entries)[:3]}")
    if "constants.pkl" in entries:
        raise PickleError("it is a TorchScript program, and no batch")
    if bytes(entries.get("byteorder", b"little")) != b"little":
        raise PickleError("it was written on a big-endian machine")

    def storage(identity: Any) -> names.Storage:
        kind, storage_type, key, *_ = identity
        if kind != "storage" or f"data/{key}" not in entries:
            raise PickleError(f"it refers to a storage {key!r} that is not in it")
        return names.Storage(entries[f"data/{key}"], names.storage_dtype(storage_type))

    return pickles.read(entries["data.pkl"], names.known_names(), storage)


def read_proto(data: memoryview) -> names.DumpedProto:
    """What ``DataProto.save_to_disk`` wrote, in either of its two ways; its batch is a dict of tensors.

    Raises:
        PickleError: It is another pickle, is cut off, or holds more than data.
    """
    proto = pickles.read(data, names.known_names())
    if not isinstance(proto, names.DumpedProto):
        raise PickleError(f"it is a pickle of a {type(proto).__name__}, and no batch")
    try:
        if isinstance(proto.batch, bytes | memoryview):
            proto.batch = read_archive(memoryview(proto.batch))
        elif isinstance(proto.batch, tuple):  # VERL_DATAPROTO_SERIALIZATION_METHOD=numpy
            proto.batch = {key: _encoded(key, *item) for key, item in proto.batch[2].items()}
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise PickleError(f"its batch is cut off or malformed: {error}") from error
    return proto


def _encoded(key: str, *parts: Any) -> Any:
    if len(parts) != 3:
        raise PickleError(f"{key} is a nested tensor: pad it and write the batch again")
    dtype, shape, array = parts
    return array.values.view(names.dtype_of(dtype)).view(tuple(shape))


def _stored(data: memoryview, info: zipfile.ZipInfo) -> memoryview:
    """The bytes of an entry: after its header, whose name and extra field are not those of the directory."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise PickleError(f"{info.filename} is compressed, which torch.save does not do")
    header = info.header_offset
    name, extra = struct.unpack("<HH", data[header + 26 : header + 30])
    begin = header + 30 + name + extra
    if begin + info.file_size > len(data):
        raise PickleError(f"it is cut off: {info.filename} ends behind the end of the file")
    return data[begin : begin + info.file_size]


class _Window(io.RawIOBase):
    """A file over bytes, for zipfile."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._data))[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        found = bytes(self._data[self._at : end])
        self._at += len(found)
        return found
