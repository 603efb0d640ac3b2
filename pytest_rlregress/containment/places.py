"""Where a contained test runs: which tests share a child, and what is imported before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest

#: What importing a component costs most of: these modules are in the warm server when a test needs the component.
WARM_MODULES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "transformers": ("transformers", "transformers.models.qwen2.modeling_qwen2"),
    "tokenizers": ("tokenizers",),
    "tensordict": ("tensordict",),
    "verl": ("verl.protocol",),
    "ray": ("ray",),
    "vllm": (
        "vllm",
        "vllm.entrypoints.llm",
        # An engine imports these only as it starts.
        "vllm.v1.worker.cpu_model_runner",
        "vllm.v1.worker.gpu_worker",
        "vllm.model_executor.layers.quantization.online.base",
        "vllm.model_executor.models.qwen2",
    ),
    "trl": ("trl",),
}


def warm_modules(components: Iterable[str]) -> tuple[str, ...]:
    """The modules a warm server imports for tests that need ``components``."""
    needed = set(components)
    return tuple(module for name, modules in WARM_MODULES.items() if name in needed for module in modules)


@dataclass(frozen=True)
class Place:
    """Where a contained test runs: tests of an equal place share a child.

    Attributes:
        group: Name of the group, or the test itself when it has a child of its own.
        environment: Variables set before the interpreter starts; not empty means an interpreter of its own.
        fresh: Whether the child comes from an interpreter that imported nothing.
        alone: Whether the child ends with the test.
    """

    group: str
    environment: tuple[tuple[str, str], ...] = ()
    fresh: bool = False
    alone: bool = False


def place_of(item: pytest.Item) -> Place | None:
    """Where a test is to run; None for one that stays in the pytest process."""
    marker = item.get_closest_marker("isolated")
    if marker is None:
        touches_stack = any(map(item.get_closest_marker, ("reproduces", "guards", "needs", "hw")))
        return Place(str(item.path.parent)) if touches_stack else None
    unknown = marker.kwargs.keys() - {"group", "env", "fresh", "timeout"}
    if unknown or marker.args:
        what = ", ".join(sorted(unknown)) or "positional arguments"
        raise pytest.UsageError(f"{item.nodeid}: isolated(): {what} not allowed; allowed: group, env, fresh, timeout.")
    group = marker.kwargs.get("group")
    environment = tuple(sorted((str(k), str(v)) for k, v in marker.kwargs.get("env", {}).items()))
    fresh = bool(marker.kwargs.get("fresh") or environment)
    return Place(group or item.nodeid, environment, fresh, alone=group is None)
