"""The groups of contained tests that share a child: who is in one, what is imported before, the limits of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest

from pytest_rlregress.catalogue import area_of
from pytest_rlregress.containment.child import Limits
from pytest_rlregress.fixtures.stack_fixtures import asked_by
from pytest_rlregress.util.units import parse_memory, parse_seconds

T = TypeVar("T")

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
    """Contained tests that run in one child, one after the other: those whose groups are equal.

    Attributes:
        name: Of the group, or the test itself when it has a child of its own.
        environment: Variables set before the interpreter starts; not empty means an interpreter of its own.
        fresh: Whether the child comes from an interpreter that imported nothing.
        alone: Whether the child ends with the test.
    """

    name: str
    environment: tuple[tuple[str, str], ...] = ()
    fresh: bool = False
    alone: bool = False


#: Tests with one of these markers are contained, and those that ask for a fixture of the stack.
CONTAINED = ("reproduces", "guards", "needs", "hw", "isolated")
#: Keywords of the marker ``isolated``; ``limits_of`` and ``group_of`` read them.
_KEYWORDS = ("group", "env", "fresh", "timeout", "memory", "stall")


def group_of(item: pytest.Item) -> ChildGroup | None:
    """The group that a test runs in; None for one that stays in the pytest process."""
    marker = item.get_closest_marker("isolated")
    if marker is None:
        asked = asked_by(item)
        if not asked and not any(map(item.get_closest_marker, CONTAINED)):
            return None
        shared = [name for name, fixture in asked.items() if fixture.shared]
        return ChildGroup(" ".join(shared) or str(area_of(item.path)))
    unknown = marker.kwargs.keys() - set(_KEYWORDS)
    if unknown or marker.args:
        what = ", ".join(sorted(unknown)) or "positional arguments"
        raise pytest.UsageError(f"{item.nodeid}: isolated(): {what} not allowed; allowed: {', '.join(_KEYWORDS)}.")
    name = marker.kwargs.get("group")
    environment = tuple(sorted((str(k), str(v)) for k, v in marker.kwargs.get("env", {}).items()))
    fresh = bool(marker.kwargs.get("fresh") or environment)
    return ChildGroup(name or item.nodeid, environment, fresh, alone=name is None)


def together(items: Sequence[pytest.Item], groups: Sequence[ChildGroup | None]) -> list[pytest.Item]:
    """The same tests, those that share a child one after the other where the first of them was."""
    mates: dict[ChildGroup, list[pytest.Item]] = {}
    for item, group in zip(items, groups, strict=True):
        if group is not None and not group.alone:
            mates.setdefault(group, []).append(item)
    ordered: list[pytest.Item] = []
    for item, group in zip(items, groups, strict=True):
        ordered += [item] if group is None or group.alone else mates.pop(group, [])
    return ordered


def limits_of(item: pytest.Item, default: Limits) -> Limits:
    """What a test may use: its marker's values, else the run's."""
    marker = item.get_closest_marker("isolated")
    given = marker.kwargs if marker else {}

    def limit(name: str, parse: Callable[[object], T], default: T) -> T:
        if given.get(name) is None:
            return default
        try:
            return parse(given[name])
        except ValueError as allowed:
            what = f"isolated({name}={given[name]!r}) is not allowed. Allowed: {allowed}."
            raise pytest.UsageError(f"{item.nodeid}: {what}") from None

    return replace(
        default,
        seconds=limit("timeout", parse_seconds, default.seconds),
        memory=limit("memory", parse_memory, default.memory),
        stall=limit("stall", parse_seconds, default.stall),
    )


def gpus_of(item: pytest.Item) -> int:
    """Return how many GPUs a test needs, where there are any: by its marker ``hw``, or for a fixture that uses one."""
    counts = [marker.kwargs.get("count") or 1 for marker in item.iter_markers("hw")]
    return max(counts, default=int(any(fixture.hardware for fixture in asked_by(item).values())))
