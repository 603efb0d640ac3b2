"""Other rows, columns and containers in a value of any type."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from promises.values import NoChange, is_a, leaf_changed, no_change, other, parts, rebuilt


def without_last(value: Any) -> Any:
    """Without its last row, entry, key or column."""
    if isinstance(value, Iterator):
        return iter(without_last(list(value)))
    if isinstance(value, dict) and value:
        return {key: value[key] for key in list(value)[:-1]}
    if (isinstance(value, list) or type(value) is tuple) and value:
        return value[:-1]
    if ((is_a(value, "Tensor") and value.dim() and not value.is_nested) or is_a(value, "ndarray")) and len(value):
        return value[:-1]
    if is_a(value, "Dataset"):
        return value.select(range(len(value) - 1))
    if is_a(value, "TensorDictBase"):
        return value.exclude(list(value.keys())[-1])
    inside = parts(value) or {}
    for name, part in reversed(inside.items()):
        try:
            return rebuilt(value, {name: without_last(part)})
        except NoChange:
            pass
    raise NoChange


def without_meta(value: Any) -> Any:
    """A ``DataProto``, or a list of them, without their meta info."""
    if isinstance(value, list):
        return [without_meta(one) for one in value] or no_change()
    return rebuilt(value, {"meta_info": {}}) if is_a(value, "DataProto") and value.meta_info else no_change()


def with_last_twice(value: Any) -> Any:
    """With the last row twice."""
    rows = list(value) if isinstance(value, (list, Iterator)) else no_change()
    new = [*rows, *rows[-1:]] if rows else no_change()
    return iter(new) if isinstance(value, Iterator) else new


def in_reverse(value: Any) -> Any:
    """With its rows in the reverse order."""
    if isinstance(value, Iterator):
        return iter(in_reverse(list(value)))
    if isinstance(value, list) and value[::-1] != value:
        return value[::-1]
    if is_a(value, "Tensor") and value.dim() and not value.is_nested and len(value) > 1:
        return value.flip(0)
    if is_a(value, "ndarray") and len(value) > 1:
        return value[::-1].copy()
    raise NoChange


def named_altered(value: Any, name: str) -> Any:
    """With another element in the part of that name."""
    inside = parts(value) or {}
    if is_a(value, "DataProto"):
        for column in ("batch", "non_tensor_batch"):
            if inside[column] is not None and name in inside[column].keys():  # noqa: SIM118 - or a TensorDict's
                return rebuilt(value, {column: named_altered(inside[column], name)})
    if isinstance(value, list) and value:
        return [*value[:-1], named_altered(value[-1], name)]
    if name not in inside:
        raise NoChange
    return rebuilt(value, {**inside, name: leaf_changed(inside[name], other, -1)})


def aliased(value: Any, arguments: tuple[Any, ...], within: bool = True) -> Any:
    """With containers and arrays of the arguments, or ``within`` it of other rows, where its own are equal."""
    pool: list[Any] = []

    def known(one: Any) -> Any:
        return next((other for other in pool if other is not one and _equal(one, other)), None)

    def gather(one: Any) -> None:
        if isinstance(one, (list, dict, set)) or is_a(one, "ndarray", "Tensor"):
            pool.append(one)
        for part in (parts(one) or {}).values():
            gather(part)

    def replaced(one: Any) -> Any:
        found = known(one)
        if found is not None:
            return found
        inside = parts(one)
        new = {key: replaced(part) for key, part in (inside or {}).items()}
        result = one if inside is None or all(new[key] is inside[key] for key in new) else rebuilt(one, new)
        if within:
            gather(result)
        return result

    for argument in arguments:
        gather(argument)
    new = replaced(value)
    return no_change() if new is value else new


def _equal(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    try:
        if is_a(one, "Tensor"):
            shared = one.data_ptr() == two.data_ptr()
            return not shared and one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())
        if is_a(one, "ndarray"):
            shared = sys.modules["numpy"].shares_memory(one, two)
            return not shared and one.dtype == two.dtype and one.tolist() == two.tolist()
        return bool(one == two) and len(one) > 0
    except Exception:  # of what is inside: a tensor's == is no bool, a jagged one has none
        return False
