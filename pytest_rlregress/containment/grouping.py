"""Where a contained test runs and what it may use: who shares its child, what is imported before, its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_rlregress.containment.child import Limits
from pytest_rlregress.util.units import parse_memory, parse_seconds

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
class ChildGroup:
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


#: Tests with one of these markers are contained.
CONTAINED = ("reproduces", "guards", "needs", "hw", "isolated")
#: Keywords of the marker ``isolated``; ``limits_of`` and ``place_of`` read them.
_KEYWORDS = ("group", "env", "fresh", "timeout", "memory", "stall")
#: Session fixtures that a run makes once: all their tests share a child, whichever folder they are in.
SHARED_FIXTURES = ("ray_cluster",)


def place_of(item: pytest.Item) -> ChildGroup | None:
    """Where a test is to run; None for one that stays in the pytest process."""
    marker = item.get_closest_marker("isolated")
    if marker is None:
        touches_stack = any(map(item.get_closest_marker, CONTAINED))
        shared = [name for name in SHARED_FIXTURES if name in getattr(item, "fixturenames", ())]
        return ChildGroup(" ".join(shared) or str(item.path.parent)) if touches_stack else None
    unknown = marker.kwargs.keys() - set(_KEYWORDS)
    if unknown or marker.args:
        what = ", ".join(sorted(unknown)) or "positional arguments"
        raise pytest.UsageError(f"{item.nodeid}: isolated(): {what} not allowed; allowed: {', '.join(_KEYWORDS)}.")
    group = marker.kwargs.get("group")
    environment = tuple(sorted((str(k), str(v)) for k, v in marker.kwargs.get("env", {}).items()))
    fresh = bool(marker.kwargs.get("fresh") or environment)
    return ChildGroup(group or item.nodeid, environment, fresh, alone=group is None)


def together(items: Sequence[pytest.Item], places: Sequence[ChildGroup | None]) -> list[pytest.Item]:
    """The same tests, those that share a child one after the other where the first of them was."""
    mates: dict[ChildGroup, list[pytest.Item]] = {}
    for item, place in zip(items, places, strict=True):
        if place is not None and not place.alone:
            mates.setdefault(place, []).append(item)
    ordered: list[pytest.Item] = []
    for item, place in zip(items, places, strict=True):
        ordered += [item] if place is None or place.alone else mates.pop(place, [])
    return ordered


def limits_of(item: pytest.Item, default: Limits) -> Limits:
    """What a test may use: its marker's values, else the run's."""
    marker = item.get_closest_marker("isolated")
    given = marker.kwargs if marker else {}
    try:
        return Limits(
            parse_seconds(given.get("timeout", default.seconds)),
            parse_memory(given.get("memory", default.memory)),
            parse_seconds(given.get("stall", default.stall)),
        )
    except ValueError as allowed:
        raise pytest.UsageError(f"{item.nodeid}: isolated(): allowed is {allowed}.") from None
