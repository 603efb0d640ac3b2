"""Remedies for dependencies: packages that a trainer imports and does not declare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from pytest_rlregress.remedies.advice import Advice

__all__ = ["undeclared_dependencies"]

# What verl imports where a setting has, or holds, a value: the module, and the distribution that brings it.
_IMPORTED_BY_VERL: tuple[tuple[str, Any, str, str], ...] = (
    ("trainer.use_v1", True, "transfer_queue", "TransferQueue"),
    ("transfer_queue.enable", True, "transfer_queue", "TransferQueue"),
    *(("trainer.logger", name, name, name) for name in ("clearml", "mlflow", "swanlab", "trackio")),
    ("actor_rollout_ref.rollout.name", "sglang", "sglang", "sglang"),
    ("actor_rollout_ref.model.use_liger", True, "liger_kernel", "liger-kernel"),
    ("critic.model.use_liger", True, "liger_kernel", "liger-kernel"),
)


def undeclared_dependencies(config: Mapping[str, Any]) -> list[Advice]:
    """Find the settings for which verl imports a package that is not installed here and that verl does not declare.

    ``pip install verl`` succeeds without them, and so does verl until it comes to the setting. Packages are looked
    for and not imported. Other packages of settings are ``missing_symbol``'s.

    Args:
        config: verl's configuration, nested; of what it leaves out only ``trainer.use_v1`` counts, which verl 0.9 and
            later take for true.

    Returns:
        One for each setting and package, which names the extra of verl that declares it, if one does; none where verl
        is not installed.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    try:
        version = metadata.version("verl")
    except metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(line) for line in metadata.requires("verl") or []]
    found = []
    for key, wanted, module, distribution in _IMPORTED_BY_VERL:
        value = _value(config, key)
        if key == "trainer.use_v1" and value is None:
            value = Version(version) >= Version("0.9.dev0")
        if (wanted not in value if isinstance(value, (list, tuple)) else value != wanted) or find_spec(module):
            continue
        declaring = [one for one in requirements if canonicalize_name(one.name) == canonicalize_name(distribution)]
        if any(one.marker is None or one.marker.evaluate({"extra": ""}) for one in declaring):
            continue
        extras = re.findall(r"extra == ['\"]([^'\"]+)", " ".join(str(one.marker) for one in declaring))
        why = f"verl imports {module} for it, which is not installed here, and verl {version} does not declare"
        why += f" outside of its extra {' and '.join(extras)}" if extras else ""
        found.append(Advice(key, why, f"pip install {distribution}"))
    return found


def _value(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
