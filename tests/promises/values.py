"""Other leaves in a value of any type: another element, fewer bits, another dtype, no gradient.

Each change raises ``NoChange`` where there is nothing to change. Nothing heavy is imported: a value's own library is.
"""

from __future__ import annotations

import copy
import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any


class NoChange(Exception):
    """The value has nothing that such a change alters."""


def is_a(value: Any, *names: str) -> bool:
    """Whether a value's class or one that it is derived from is called so: its library need not be imported."""
    return any(one.__name__ in names for one in type(value).__mro__)


# -- structure ---------------------------------------------------------------------------------------------------------


def parts(value: Any) -> dict[Any, Any] | None:
    """What a value is made of, by key; None for a leaf."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if is_a(value, "TensorDictBase"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118 - iterating a TensorDict gives rows
    if is_a(value, "DataProto"):
        return {"batch": value.batch, "non_tensor_batch": value.non_tensor_batch, "meta_info": value.meta_info}
    if hasattr(value, "__struct_fields__") and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def rebuilt(value: Any, new: Mapping[Any, Any]) -> Any:
    """A value like another one, of the same structure, with other parts; shallow."""
    if isinstance(value, dict):
        return dict(new)
    if isinstance(value, (list, tuple)):
        return type(value)(*new.values()) if hasattr(value, "_fields") else type(value)(new.values())
    other = value.clone(recurse=False) if is_a(value, "TensorDictBase") else copy.copy(value)
    for key, part in new.items():
        if is_a(value, "TensorDictBase"):
            other[key] = part
        else:
            object.__setattr__(other, key, part)
    return other


def leaves_changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change every leaf that can be.

    Raises:
        NoChange: None can.
    """
    if isinstance(value, Iterator):
        return iter(leaves_changed(list(value), change))
    inside = parts(value)
    if inside is None:
        return change(value)
    new, changed = dict(inside), False
    for key, part in inside.items():
        try:
            new[key] = leaves_changed(part, change)
            changed = True
        except NoChange:
            pass
    if not changed:
        raise NoChange
    return rebuilt(value, new)


def leaf_changed(value: Any, change: Callable[[Any], Any], place: int) -> Any:
    """Change the first (``place`` 0) or the last (-1) leaf that can be.

    Raises:
        NoChange: None can.
    """
    if isinstance(value, Iterator):
        return iter(leaf_changed(list(value), change, place))
    found: list[int] = []

    def seen(leaf: Any) -> Any:
        number = next(numbers)
        change(leaf)
        found.append(number)
        return leaf

    def at_place(leaf: Any) -> Any:
        if next(numbers) != found[place]:
            raise NoChange
        return change(leaf)

    numbers = count()
    leaves_changed(value, seen)
    numbers = count()
    return leaves_changed(value, at_place)


# -- leaves ------------------------------------------------------------------------------------------------------------


def other(leaf: Any, place: int = -1) -> Any:
    """Another leaf of the same type: of an array and a tensor, another first or last element."""
    if isinstance(leaf, bool) or is_a(leaf, "bool", "bool_"):
        return not leaf
    if isinstance(leaf, (int, float)) or is_a(leaf, "number"):
        return type(leaf)(leaf + 1 if leaf + 1 not in (leaf, float("inf")) and leaf == leaf else 0)
    if isinstance(leaf, str):
        return f"{leaf}x"
    if isinstance(leaf, Path):
        return leaf.with_name(f"{leaf.name}x")
    if is_a(leaf, "Tensor"):
        return _other_tensor(leaf, place)
    if is_a(leaf, "ndarray") and leaf.size:
        new = leaf.copy()
        element = leaf.reshape(-1)[place]
        new.reshape(-1)[place] = "x" if element is None else leaf_changed(element, other, -1)
        return new
    if callable(leaf) and not isinstance(leaf, type) and not is_a(leaf, "Module"):
        return lambda *args, **kwargs: None
    raise NoChange


def unsaid(leaf: Any, place: int = -1) -> Any:
    """No word of a text."""
    return "x" if isinstance(leaf, str) else no_change()


def _other_tensor(tensor: Any, place: int) -> Any:
    if not tensor.numel():
        raise NoChange
    if tensor.is_nested:
        import torch

        values = _other_tensor(tensor.values(), place)
        return torch.nested.nested_tensor_from_jagged(values, tensor.offsets(), jagged_dim=tensor._ragged_idx)
    new = tensor.clone().contiguous()
    if not tensor.is_leaf or not tensor.requires_grad:
        flat = new.view(-1)
        element = flat[place].item()
        flat[place] = other(element) if tensor.dtype.is_floating_point is False or element + 1 != element else 0
        return new
    raise NoChange


def rounded(leaf: Any) -> Any:
    """Through the next lower precision and back: float64 by float32, float32 by bfloat16."""
    if isinstance(leaf, float):
        new: Any = struct.unpack("f", struct.pack("f", leaf))[0] if abs(leaf) < 1e38 else leaf
    elif is_a(leaf, "Tensor"):
        import torch

        lower = {torch.float64: torch.float32, torch.float32: torch.bfloat16}.get(leaf.dtype)
        if lower is None or leaf.is_nested:
            raise NoChange
        new = leaf.to(lower).to(leaf.dtype)
        if torch.equal(new.nan_to_num(), leaf.nan_to_num()):
            raise NoChange
        return new
    elif is_a(leaf, "ndarray") and leaf.dtype == "float64":
        new = leaf.astype("float32").astype("float64")
        if (new == leaf).all():
            raise NoChange
        return new
    elif is_a(leaf, "Module"):
        changes = [(one, rounded(one.data)) for one in leaf.parameters() if one.dtype.itemsize >= 4]
        for parameter, lower in changes:
            parameter.data = lower
        return leaf if changes else no_change()
    else:
        raise NoChange
    return new if new != leaf and new == new else no_change()


def retyped(leaf: Any) -> Any:
    """The same numbers in another dtype."""
    if is_a(leaf, "Tensor") and not leaf.is_nested:
        import torch

        dtypes = {torch.float64: torch.float32, torch.int64: torch.int32, torch.bool: torch.int64}
        return leaf.to(dtypes.get(leaf.dtype, torch.float64 if leaf.is_floating_point() else torch.int64))
    if is_a(leaf, "ndarray"):
        import numpy as np

        return np.array(leaf.tolist()) if leaf.dtype == object else leaf.astype(object)
    raise NoChange


def detached(leaf: Any) -> Any:
    """Without the gradient that it has."""
    return leaf.detach() if is_a(leaf, "Tensor") and leaf.requires_grad else no_change()


def tracked(leaf: Any) -> Any:
    """With a gradient that it has not."""
    if not is_a(leaf, "Tensor") or leaf.requires_grad or not leaf.is_floating_point():
        raise NoChange
    return leaf.detach().requires_grad_()


def cloned(leaf: Any) -> Any:
    """On a storage of its own."""
    return leaf.clone() if is_a(leaf, "Tensor") else leaf.copy() if is_a(leaf, "ndarray") else no_change()


def nothing(value: Any) -> None:
    """None instead."""
    return None if value is not None else no_change()


def no_change() -> Any:
    """``raise NoChange`` as an expression."""
    raise NoChange
