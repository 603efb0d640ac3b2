"""Read the data in a pickle without running any of it: what it names is looked up in a table of ours.

numpy rebuilds an array from a state that can describe Python objects by their addresses; here arrays are rebuilt from
plain numbers and texts only. Long byte strings are views into the file, not copies.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Callable
from typing import Any, ClassVar

_NUMBERS = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "f2": "float16", "f4": "float32", "f8": "float64",
}  # fmt: skip
_VIEWED = 1 << 16  # pickle writes byte strings from this size on outside of its frames
ERRORS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError, EOFError),
    *(OSError, MemoryError, pickle.UnpicklingError, struct.error),
)


class PickleError(Exception):
    """A pickle that is not whole, or that is more than data."""


class RefusedName(PickleError):
    """A pickle that asks for a function or class that the table doesn't have."""


class Stateful:
    """What a pickle gives its state to after it made it; classes of ours in place of the trainer's."""

    def __new__(cls, *arguments: Any) -> Any:
        """Keep the arguments, whichever way a pickle makes an object in."""
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *_: Any) -> None:
        self.arguments: tuple[Any, ...]

    def __setstate__(self, state: Any) -> None:
        """Take the state over."""
        self.state = state


class DumpedProto(Stateful):
    """verl's ``DataProto``: its state is a batch, as bytes or as numpy arrays, columns of objects, and meta info."""


class NonTensor(Stateful):
    """tensordict's ``NonTensorData`` and ``NonTensorStack``: objects in a TensorDict."""

    @property
    def value(self) -> Any:
        """The object, or of a stack a list of them."""
        if "tensordicts" in self.state:
            return [part.value for part in self.state["tensordicts"]]
        return self.state["non_tensordict"]["data"]


class _NumpyDtype(Stateful):
    """A numpy dtype, as far as data needs it."""

    def values(self, data: Any, count: int) -> Any:
        """Return ``count`` values of this dtype: a tensor, or texts."""
        import torch

        code: str = str(self.arguments[0]).lstrip("<>|=")
        _, order, subtype, _, fields = self.state[:5]
        if order == ">" or subtype is not None or fields is not None:
            raise PickleError("it has a numpy array in big-endian order, or of records")
        if code in _NUMBERS:
            kind = getattr(torch, _NUMBERS[code])
            return torch.frombuffer(bytearray(data), dtype=kind, count=count) if count else torch.empty(0, dtype=kind)
        if code[:1] not in ("U", "S"):
            raise PickleError(f"it has a numpy array of the dtype {code}")
        width, coding = int(code[1:]), "latin-1"
        if code[0] == "U":
            width, coding = width * 4, "utf-32-le"
        pieces = [bytes(data[at * width : (at + 1) * width]) for at in range(count)]
        return [piece.decode(coding).rstrip("\0") for piece in pieces]


class NumpyArray(Stateful):
    """A numpy array; a pickle that reads one can't reach the tensor in it."""

    @property
    def value(self) -> Any:
        """The array as a tensor, or as a list of its objects."""
        _, shape, dtype, column_major, data = self.state
        if column_major and len(shape) > 1:
            raise PickleError("it has a numpy array in Fortran's order")
        values = data if isinstance(data, list) else dtype.values(data, math.prod(shape))
        if len(values) != math.prod(shape):
            raise PickleError(f"a numpy array of {math.prod(shape)} values has {len(values)}")
        return values if isinstance(values, list) else values.view(tuple(shape))


def _array(data: Any, dtype: _NumpyDtype, shape: Any, order: str, *_: Any) -> NumpyArray:
    array = NumpyArray()
    array.__setstate__((1, shape, dtype, order == "F", data))
    return array


def _scalar(dtype: _NumpyDtype, data: Any) -> Any:
    value = dtype.values(data, 1)[0]
    return value if isinstance(value, str) else value.item()


def _encode(text: str, _: str = "latin1") -> bytes:
    return text.encode("latin-1")


def _tensordict(_: Any, state: dict[str, Any]) -> dict[str, Any]:
    return dict(state["_tensordict"])


def _consolidated(metadata: dict[str, Any], storage: Any) -> dict[str, Any]:
    """Return the parts of tensordict's ``consolidate()``: one storage, and where in it each tensor is."""
    import torch

    parts = {key: value for key, value in metadata.items() if key not in ("cls", "cls_metadata", "size")}
    found: dict[str, Any] = {key: value[0] for key, value in parts.pop("non_tensors", {}).items()}
    for key, (dtype, shape, start, stop, _) in parts.pop("leaves", {}).items():
        if key.startswith("<NJT"):
            raise PickleError("it has nested tensors: pad them (torch.nested.to_padded_tensor) and write them again")
        kind = getattr(torch, str(dtype).removeprefix("torch."), None)
        if not 0 <= start <= stop <= len(storage) or not isinstance(kind, torch.dtype):
            raise PickleError(f"{key} is outside of its storage, or of the dtype {dtype}")
        found[key] = storage[start : start + math.prod(shape) * kind.itemsize].view(kind).view(tuple(shape))
    return found | {key: _consolidated(part, storage) for key, part in parts.items()}


def _is_only_a_name(*_: Any) -> Any:
    raise PickleError("it calls what is only a name in a batch")


#: What the pickles of trainers may name, and what is made in its place.
KNOWN: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": dict,
    "collections.defaultdict": lambda *_: {},
    "_codecs.encode": _encode,
    "torch.Size": tuple,
    "torch.device": lambda *words: ":".join(map(str, words)),
    "tensordict._td.TensorDict": _is_only_a_name,
    "tensordict._reductions._make_td": _tensordict,
    "tensordict._reductions._rebuild_tensordict_files_consolidated": _consolidated,
    "tensordict.tensorclass.NonTensorData": NonTensor,
    "tensordict.tensorclass.NonTensorStack": NonTensor,
    "numpy.ndarray": _is_only_a_name,
    "numpy.dtype": _NumpyDtype,
    "verl.protocol.DataProto": DumpedProto,
    **{f"{core}.multiarray._reconstruct": NumpyArray for core in ("numpy.core", "numpy._core")},  # numpy 1, numpy 2
    **{f"{core}.multiarray.scalar": _scalar for core in ("numpy.core", "numpy._core")},
    **{f"{core}.numeric._frombuffer": _array for core in ("numpy.core", "numpy._core")},
}
for _builtins in ("builtins", "__builtin__"):  # Python 3, and the protocols that Python 2 knows
    KNOWN |= {f"{_builtins}.set": set, f"{_builtins}.frozenset": frozenset, f"{_builtins}.bytes": lambda: b""}
    KNOWN |= {f"{_builtins}.{kind.__name__}": _is_only_a_name for kind in (list, dict, int, float, str, bool)}
KNOWN |= {f"torch.{name}": _is_only_a_name for name in (*_NUMBERS.values(), "bfloat16")}


class _File:
    """A file over bytes; reads of some size are views."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def read(self, size: int) -> bytes | memoryview:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise PickleError("it is cut off")
        self._at += size
        return found if size >= _VIEWED else bytes(found)

    def readline(self) -> bytes:
        line = bytes(self._data[self._at : self._at + _VIEWED]).partition(b"\n")[0]
        return bytes(self.read(len(line) + 1))


# The reader in C copies byte strings, and makes room for as many memos as a file says it has.
class _Reader(pickle._Unpickler):
    """Python's reader in Python, for which nothing is imported, and which changes only objects of ours."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {**pickle._Unpickler.dispatch}

    def find_class(self, module: str, name: str) -> Any:
        """Look a name up in the table."""
        if (full := f"{module}.{name}") not in KNOWN:
            raise RefusedName(full)
        return KNOWN[full]

    def persistent_load(self, _: Any) -> Any:
        """Refuse it."""
        raise PickleError("it refers to something outside of the file")

    def load_build(self) -> None:
        """Give the state above on the stack to the object below it; never to a class or a function of the table."""
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, Stateful):
            made.__setstate__(state)
        elif state:
            raise PickleError(f"it gives a state to a {type(made).__name__}")

    dispatch[pickle.BUILD[0]] = load_build


def read(data: memoryview) -> Any:
    """Return the data in a pickle; it may hold views into it.

    Raises:
        RefusedName: It names something that is not in the table; nothing of that was imported or called.
        PickleError: It is cut off or malformed.
    """
    try:
        return _Reader(_File(data)).load()  # type: ignore[arg-type]  # it reads, which is all that is asked of it
    except ERRORS as error:
        raise PickleError(f"it is cut off or malformed: {error}") from error
