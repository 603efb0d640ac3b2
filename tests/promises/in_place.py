"""Changes to an argument in place, whatever its type."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from promises.values import NoChange, is_a, leaf_changed, other, parts


def spoil_contents(value: Any) -> None:
    """Alter the innermost last element of a value in place."""
    if is_a(value, "Module"):
        value = next(iter(value.parameters()))
    if is_a(value, "PretrainedConfig"):
        value.spoilt = True
    elif is_a(value, "Tensor") and value.numel() and not value.is_nested:
        value.data.view(-1)[-1] = other(value.detach().reshape(-1)[-1].item())
    elif is_a(value, "ndarray") and value.size:
        element = value.reshape(-1)[-1]
        value.reshape(-1)[-1] = "x" if element is None else leaf_changed(element, other, -1)
    elif isinstance(value, (str, Path)) and Path(value).is_dir():
        for file in [one for one in sorted(Path(value).rglob("*")) if one.is_file()][-1:]:
            file.write_bytes(file.read_bytes() + b" ")
    else:
        _spoil_part(value)


def _spoil_part(value: Any) -> None:
    items = list(value.items()) if isinstance(value, MutableMapping) else list((parts(value) or {}).items())
    for key, part in reversed(items):
        try:
            return spoil_contents(part)
        except NoChange:
            pass
        if isinstance(value, (list, MutableMapping)):
            try:
                value[key] = other(part)
                return None
            except NoChange:
                pass
    raise NoChange


def spoil_itself(value: Any) -> None:
    """Alter a container or a model itself in place: one more entry, another mode."""
    if is_a(value, "Module"):
        value.train(not value.training)
    elif is_a(value, "DataProto"):
        value.meta_info["spoilt"] = True
    elif isinstance(value, MutableMapping):
        value["spoilt"] = "x"
    elif isinstance(value, list):
        value.append(value[-1] if value else None)
    elif isinstance(value, (str, Path)) and Path(value).is_dir():
        (Path(value) / "spoilt").write_text("x")
    else:
        for part in (parts(value) or {}).values():
            try:
                return spoil_itself(part)
            except NoChange:
                pass
        raise NoChange
    return None


def spoil_configuration(value: Any) -> None:
    """Alter a model's configuration in place."""
    if not is_a(value, "Module") or not hasattr(value, "config"):
        raise NoChange
    value.config.use_cache = not value.config.use_cache
