"""Read the data in a pickle without running any of it: for each class and function that it names stands one of ours.

numpy rebuilds an array from a state that can describe Python objects by their addresses; here arrays are rebuilt from
plain numbers and texts only.
"""

from __future__ import annotations

import math
import pickle
import struct
from typing import Any, ClassVar

_NUMBERS = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "f2": "float16", "f4": "float32", "f8": "float64",
}  # fmt: skip
_INSIDE_ITSELF = 2**63  # more than any file can hold
_CORES = ("numpy.core", "numpy._core")  # numpy 1, numpy 2
_SCALAR = {f"{core}.multiarray.scalar" for core in _CORES}
_FROM_BUFFER = {f"{core}.numeric._frombuffer" for core in _CORES}
_FROM_STATE = {f"{core}.multiarray._reconstruct" for core in _CORES}
_OF_NUMPY = {"numpy.ndarray", "numpy.dtype", *_SCALAR, *_FROM_BUFFER, *_FROM_STATE}


class RefusedName(Exception):
    """A pickle that asks for a function or class that a batch doesn't need."""


class Inert:
    """Stands for an object that a pickle makes: it keeps what it is given, and does nothing.

    Attributes:
        name: Of the class, or of the function that returns the object.
        arguments: That it is made with.
        state: That it is given later.
    """

    name = ""
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.state = state


# Python's reader in Python: the one in C makes room for as many memos as a file says it has.
class _Reader(pickle._Unpickler):
    def __init__(self, file: Any, names: set[str]) -> None:
        super().__init__(file)
        self._names = names

    def load_bytearray8(self: Any) -> None:
        """Read a bytearray: Python makes room for as many bytes as the file says it has, before it looks."""
        (size,) = struct.unpack("<Q", self.read(8))
        data = self.read(size)
        if len(data) != size:
            raise ValueError(f"it says that {size:,} bytes follow, and it has {len(data):,}")
        self.append(bytearray(data))

    dispatch: ClassVar[Any] = {**pickle._Unpickler.dispatch, 0x96: load_bytearray8}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self._names:
            raise RefusedName(full)
        return type(name, (Inert,), {"name": full})

    def persistent_load(self, _: Any) -> Any:
        raise ValueError("it refers to something outside of the file")


def read_state(file: Any, name: str) -> Any:
    """Return the state of the one object in a pickle.

    Args:
        file: Open for reading.
        name: The object's class.

    Raises:
        RefusedName: The pickle names something else, numpy's arrays excepted; nothing of that was imported or called.
    """
    begin = file.tell()
    found = _Reader(file, {name, *_OF_NUMPY}).load()
    check_nodes(found, file.tell() - begin)
    if not isinstance(found, Inert) or found.name != name:
        raise ValueError(f"it is a pickle of a {type(found).__name__}")
    return found.state


def check_nodes(value: Any, most: int) -> None:
    """Raise a ValueError if there is more in a value than a file of so many bytes can hold.

    What a pickle names a second time takes two bytes there, and may be a list of lists of lists of such names.
    """
    counts: dict[int, int] = {}
    if _count_nodes(value, counts) > most:
        raise ValueError("it holds itself, or more than a file of its size can hold: lists of the same lists")


def _count_nodes(value: Any, counts: dict[int, int]) -> int:
    """Count what is in a value, each time that it is there."""
    if isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inside = [*value]
    else:
        inside = [part for part in (getattr(value, "__dict__", None),) if isinstance(part, dict) and part]
    if not inside:
        return 1
    if id(value) not in counts:
        counts[id(value)] = _INSIDE_ITSELF
        counts[id(value)] = 1 + sum(_count_nodes(one, counts) for one in inside)
    return counts[id(value)]


def plain(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return values with numpy's arrays as tensors, or as lists of texts and objects."""
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:
    if not isinstance(value, Inert):
        return value
    if value.name in _SCALAR:
        dtype, data = value.arguments
        found = _values(dtype, data, 1)[0]
        return found.item() if hasattr(found, "item") else found
    if value.name in _FROM_BUFFER:
        data, dtype, shape, order = value.arguments
    else:
        _, shape, dtype, column_major, data = value.state
        order = "F" if column_major else "C"
    if order == "F" and len(shape) > 1:
        raise ValueError("it has a numpy array in Fortran's order")
    count = math.prod(shape)
    values = [_plain(one) for one in data] if isinstance(data, list) else _values(dtype, data, count)
    if len(values) != count:
        raise ValueError(f"a numpy array of {count} values has {len(values)}")
    return values if isinstance(values, list) else values.view(tuple(shape))


def _values(dtype: Inert, data: bytes, count: int) -> Any:
    """Return ``count`` values of a dtype: a tensor, or texts."""
    import torch

    code = str(dtype.arguments[0])
    width = 4 * int(code[1:]) if code.startswith("U") else int(code[1:])
    if count * width != len(data) or (count and not width):
        raise ValueError(f"a numpy array of {count:,} values has {len(data):,} bytes")
    if dtype.state[1] == ">" or dtype.name != "numpy.dtype":
        raise ValueError("it has a numpy array in big-endian order")
    if code in _NUMBERS:
        kind = getattr(torch, _NUMBERS[code])
        return torch.frombuffer(bytearray(data), dtype=kind, count=count) if count else torch.empty(0, dtype=kind)
    if not code.startswith("U"):
        raise ValueError(f"it has a numpy array of the dtype {code}")
    return [data[at * width : (at + 1) * width].decode("utf-32-le").rstrip("\0") for at in range(count)]
