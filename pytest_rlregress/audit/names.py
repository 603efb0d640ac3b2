"""What the pickles of trainers may name, each with what is made in its place: no code of torch, numpy or verl runs.

numpy rebuilds an array from a state that can describe Python objects by their addresses; here arrays are rebuilt from
plain numbers and texts only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_rlregress.audit.pickles import AllowedName, PickleError, Stateful

if TYPE_CHECKING:
    import torch

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
_DTYPES = (*_STORAGES.values(), "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
_NUMPY_DTYPES = {"b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8"} | {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
}


def dtype_of(name: Any) -> torch.dtype:
    """The dtype of this name, with or without ``torch.`` before it."""
    import torch

    short = str(name).removeprefix("torch.")
    if short not in _DTYPES:
        raise PickleError(f"it has a tensor of the dtype {name}")
    return getattr(torch, short)


def tensor_of(data: Any, dtype: Any, shape: Any) -> torch.Tensor:
    """A tensor over bytes, not a copy of them: it must not be written to."""
    import warnings

    import torch

    kind, size = dtype_of(dtype), tuple(int(n) for n in shape)
    count = math.prod(size)
    if count == 0:
        return torch.empty(size, dtype=kind)
    if len(data) < count * kind.itemsize:
        raise PickleError(f"a tensor of {count * kind.itemsize:,} bytes has only {len(data):,}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the buffer is not writable
        return torch.frombuffer(data, dtype=kind, count=count).view(size)


@dataclass(frozen=True)
class Storage:
    """The bytes of a tensor or of several, in the file."""

    data: memoryview
    dtype: str


def _tensor(storage: Storage, offset: int, size: Any, stride: Any, *rest: Any) -> torch.Tensor:
    dtype = (
        rest[2].name if len(rest) > 2 and isinstance(rest[2], AllowedName) else storage.dtype
    )  # of _rebuild_tensor_v3
    kind = dtype_of(dtype)
    flat = tensor_of(storage.data, dtype, (len(storage.data) // kind.itemsize,))
    return flat.as_strided(tuple(size), tuple(stride), offset) if math.prod(size) else flat.new_empty(tuple(size))


def _consolidated(metadata: dict[str, Any], storage: torch.Tensor) -> dict[str, Any]:
    """tensordict's ``consolidate()``: one storage, and where in it each tensor lies, with padding to 8 bytes."""
    parts = dict(metadata)
    found: dict[str, Any] = {key: value[0] for key, value in parts.pop("non_tensors", {}).items()}
    for key, (dtype, shape, start, stop, _) in parts.pop("leaves", {}).items():
        if key.startswith("<NJT"):
            raise PickleError("it has nested tensors: pad them (torch.nested.to_padded_tensor) and write them again")
        if not 0 <= start <= stop <= len(storage):
            raise PickleError(f"{key} lies outside of its storage")
        kind = dtype_of(dtype)
        found[key] = storage[start : start + math.prod(shape) * kind.itemsize].view(kind).view(tuple(shape))
    for key in ("cls", "cls_metadata", "size"):
        parts.pop(key, None)
    return found | {key: _consolidated(part, storage) for key, part in parts.items()}


class _NumpyDtype(Stateful):
    """A numpy dtype, as far as data needs it."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = str(code).lstrip("<>|="), "<"

    def set_state(self, state: Any) -> None:
        self.order = state[1]
        if len(state) > 4 and (state[2] is not None or state[4] is not None):
            raise PickleError("it has a numpy array of records")

    def values(self, data: Any, count: int) -> Any:
        """``count`` values of this dtype: a tensor, or texts."""
        if self.order == ">":
            raise PickleError("it has a numpy array in big-endian order")
        if self.code in _NUMPY_DTYPES:
            return tensor_of(data, _NUMPY_DTYPES[self.code], (count,))
        if self.code[:1] in ("U", "S"):
            width = int(self.code[1:]) * (4 if self.code[0] == "U" else 1)
            coding = "utf-32-le" if self.code[0] == "U" else "latin-1"
            pieces = [bytes(data[at * width : (at + 1) * width]) for at in range(count)]
            return [piece.decode(coding).rstrip("\0") for piece in pieces]
        raise PickleError(f"it has a numpy array of the dtype {self.code}")


class NumpyArray(Stateful):
    """A numpy array, as a tensor or as a list of its objects."""

    def __init__(self, *_: Any) -> None:
        self.shape: tuple[int, ...] = ()
        self.values: Any = []

    def set_state(self, state: Any) -> None:
        """Take shape and values over."""
        _, shape, dtype, column_major, data = state
        self.shape, count = tuple(shape), math.prod(shape)
        if column_major and len(self.shape) > 1:
            raise PickleError("it has a numpy array in Fortran's order")
        if isinstance(data, list):
            self.values = data
        else:
            self.values = dtype.values(data, count)
        if len(self.values) != count:
            raise PickleError(f"a numpy array of {count} values has {len(self.values)}")


def _from_buffer(data: Any, dtype: _NumpyDtype, shape: Any, order: str, *_: Any) -> NumpyArray:
    array = NumpyArray()
    array.set_state((1, shape, dtype, order == "F", data))
    return array


def _scalar(dtype: _NumpyDtype, data: Any) -> Any:
    value = dtype.values(data, 1)
    return value[0] if isinstance(value, list) else value[0].item()


class DumpedProto(Stateful):
    """verl's ``DataProto``: its batch as bytes or as numpy arrays, columns of objects, meta info."""

    def __init__(self, *_: Any) -> None:
        self.batch: Any = None
        self.columns: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}

    def set_state(self, state: Any) -> None:
        """Take its three parts over."""
        if not isinstance(state, tuple):
            raise PickleError("its DataProto is of another verl: its state is no triple")
        self.batch, self.columns, self.meta = state


class NonTensor(Stateful):
    """tensordict's ``NonTensorData`` and ``NonTensorStack``: objects in a TensorDict."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def set_state(self, state: Any) -> None:
        """Take it over."""
        self.state = state

    @property
    def value(self) -> Any:
        """The object, or of a stack a list of them."""
        if "tensordicts" in self.state:
            return [part.value for part in self.state["tensordicts"]]
        return self.state["non_tensordict"]["data"]


def _encode(text: str, _: str = "latin1") -> bytes:
    return text.encode("latin-1")


def _state_of_tensordict(_: Any, state: dict[str, Any]) -> dict[str, Any]:
    return dict(state["_tensordict"])


def _not_called(*_: Any) -> Any:
    raise PickleError("it calls what is only a name in a batch")


def known_names() -> dict[str, AllowedName]:
    """The table."""
    functions: dict[str, Callable[..., Any]] = {
        "collections.OrderedDict": dict,
        "collections.defaultdict": lambda *_: {},
        "_codecs.encode": _encode,
        "torch.Size": tuple,
        "torch.device": lambda *words: ":".join(map(str, words)),
        "torch._utils._rebuild_tensor_v2": _tensor,
        "torch._utils._rebuild_tensor_v3": _tensor,
        "torch._utils._rebuild_parameter": lambda data, *_: data,
        "tensordict._td.TensorDict": _not_called,
        "tensordict._reductions._make_td": _state_of_tensordict,
        "tensordict._reductions._rebuild_tensordict_files_consolidated": _consolidated,
        "tensordict.tensorclass.NonTensorData": NonTensor,
        "tensordict.tensorclass.NonTensorStack": NonTensor,
        "numpy.ndarray": _not_called,
        "numpy.dtype": _NumpyDtype,
        "verl.protocol.DataProto": DumpedProto,
    }
    for core in ("numpy.core", "numpy._core"):  # numpy 1, numpy 2
        functions[f"{core}.multiarray._reconstruct"] = NumpyArray
        functions[f"{core}.multiarray.scalar"] = _scalar
        functions[f"{core}.numeric._frombuffer"] = _from_buffer
    for builtins in ("builtins", "__builtin__"):  # Python 3, and the protocols that Python 2 knows
        functions |= {f"{builtins}.set": set, f"{builtins}.frozenset": frozenset, f"{builtins}.bytes": lambda: b""}
        functions |= {f"{builtins}.{name}": _not_called for name in ("list", "dict", "int", "float", "str", "bool")}
    for storage in (*_STORAGES, "storage.UntypedStorage", "UntypedStorage"):
        functions[f"torch.{storage}"] = _not_called
    table = {name: AllowedName(name, make) for name, make in functions.items()}
    return table | {f"torch.{name}": AllowedName(name, _not_called) for name in _DTYPES}


def storage_dtype(storage: Any) -> str:
    """The dtype of a storage class that a pickle names."""
    return _STORAGES.get(str(storage.name).rpartition(".")[2], "uint8")
