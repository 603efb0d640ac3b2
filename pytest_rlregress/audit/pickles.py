"""Read the data in a pickle without running any of it: for each class and function that it names stands one of ours.

numpy rebuilds an array from a state that can describe Python objects by their addresses; here arrays are rebuilt from
plain numbers and texts only.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

_NUMBERS = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "f2": "float16", "f4": "float32", "f8": "float64",
}  # fmt: skip
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
    found = _Reader(file, {name, *_OF_NUMPY}).load()
    if not isinstance(found, Inert) or found.name != name:
        raise ValueError(f"it is a pickle of a {type(found).__name__}")
    return found.state


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
    if dtype.state[1] == ">" or dtype.name != "numpy.dtype":
        raise ValueError("it has a numpy array in big-endian order")
    if code in _NUMBERS:
        kind = getattr(torch, _NUMBERS[code])
        return torch.frombuffer(bytearray(data), dtype=kind, count=count) if count else torch.empty(0, dtype=kind)
    if not code.startswith("U"):
        raise ValueError(f"it has a numpy array of the dtype {code}")
    width = 4 * int(code[1:])
    return [data[at * width : (at + 1) * width].decode("utf-32-le").rstrip("\0") for at in range(count)]
