"""Remedies for dependencies: packages that a trainer imports and does not declare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from pytest_rlregress.remedies.advice import Advice

__all__ = ["undeclared_dependencies"]

# What every run of verl imports, since which release: the module, and the distribution that brings it.
_IMPORTED_BY_EVERY_RUN = {"0.8": ("orjson", "orjson")}

# What verl imports where a setting has, or holds, a value.
_IMPORTED_BY_SETTING: tuple[tuple[str, Any, str, str], ...] = (
    ("trainer.use_v1", True, "transfer_queue", "TransferQueue"),
    ("transfer_queue.enable", True, "transfer_queue", "TransferQueue"),
    *(("trainer.logger", name, name, name) for name in ("clearml", "mlflow", "swanlab", "trackio")),
    ("actor_rollout_ref.rollout.name", "sglang", "sglang", "sglang"),
    ("actor_rollout_ref.model.use_liger", True, "liger_kernel", "liger-kernel"),
    ("critic.model.use_liger", True, "liger_kernel", "liger-kernel"),
)


def undeclared_dependencies(config: Mapping[str, Any]) -> list[Advice]:
    """Find the packages that verl imports for a configuration, does not declare, and that are not installed here.

    ``pip install verl`` succeeds without them, and so does verl until it comes to the import. Packages are looked for
    and not imported. Other packages of settings are ``missing_symbol``'s.

    Args:
        config: verl's configuration, nested; of what it leaves out only ``trainer.use_v1`` counts, which verl 0.9 and
            later take for true.

    Returns:
        One finding for each setting and package; it names verl's extra if there is one. The key of what every run
        imports is ``trainer``. No finding where verl isn't installed.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    try:
        version = metadata.version("verl")
    except metadata.PackageNotFoundError:
        return []
    release = Version(version)
    needed = [("trainer", *names) for since, names in _IMPORTED_BY_EVERY_RUN.items() if release >= Version(since)]
    for key, wanted, module, distribution in _IMPORTED_BY_SETTING:
        value = _value(config, key)
        if key == "trainer.use_v1" and value is None:
            value = release >= Version("0.9.dev0")
        if wanted in value if isinstance(value, (list, tuple)) else value == wanted:
            needed.append((key, module, distribution))
    requirements = [Requirement(line) for line in metadata.requires("verl") or []]
    found = []
    for key, module, distribution in needed:
        declaring = [one for one in requirements if canonicalize_name(one.name) == canonicalize_name(distribution)]
        if find_spec(module) or any(one.marker is None or one.marker.evaluate({"extra": ""}) for one in declaring):
            continue
        extras = re.findall(r"extra == ['\"]([^'\"]+)", " ".join(str(one.marker) for one in declaring))
        why = f"verl imports {module} for it, which is not installed here, and verl {version} does not declare it"
        why += f" outside of its extra {' and '.join(extras)}" if extras else ""
        found.append(Advice(key, why, f"pip install {distribution}"))
    return found


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
