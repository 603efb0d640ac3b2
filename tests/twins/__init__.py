"""Twins: a broken remedy or another stack, under which a scenario's tests must come to another verdict.

Loaded into a run of the scenarios with ``-p twins``, this runs each sided test once under each of its twins and
nothing else; ``tests/test_twins.py`` looks at the verdicts. One room per scenario folder holds the twins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress import catalogue, remedies

CATALOGUE = catalogue.load([catalogue.SHIPPED])
TWINS: list[Twin] = []


@dataclass(frozen=True)
class Twin:
    """What to change before a test of ``failure`` begins, and the verdict its side must then come to.

    Attributes:
        verdict: ``regressed`` (guards); ``absent``, ``changed``, ``reproduced`` or ``returned`` (reproduces).
        apply: Takes pytest's monkeypatch, in the process of the test.
        only: Part of the ids of the tests it is for: a twin need not run those that take long.
    """

    name: str
    failure: str
    verdict: str
    apply: Callable[[pytest.MonkeyPatch], None]
    only: str

    @property
    def side(self) -> str:
        return "guards" if self.verdict == "regressed" else "reproduces"

    @property
    def folder(self) -> str:
        return CATALOGUE[self.failure].source.parent.name


def twin(failure: str, verdict: str, only: str = "") -> Callable[..., Any]:
    """Register ``function(monkeypatch)`` as a twin of a failure."""

    def register(apply: Callable[[pytest.MonkeyPatch], None]) -> Any:
        TWINS.append(Twin(apply.__name__, failure, verdict, apply, only))
        return apply

    return register


def broken(failure: str, only: str = "") -> Callable[..., Any]:
    """Register a function that takes the place of a failure's remedy: its guards must be ``regressed``."""

    def register(function: Callable[..., Any]) -> Any:
        subject = CATALOGUE[failure].subject
        assert subject, f"{failure} has no subject"

        def apply(monkeypatch: pytest.MonkeyPatch) -> None:
            monkeypatch.setattr(remedies, subject, function)

        TWINS.append(Twin(function.__name__, failure, "regressed", apply, only))
        return function

    return register


for room in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"twins.{room.stem}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = [twin for twin in TWINS if twin.failure in _ids(metafunc.definition, twin.side)]
    if found:
        metafunc.fixturenames.append("twin_applied")
        metafunc.parametrize("twin_applied", found, ids=[twin.name for twin in found], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        twin = callspec.params.get("twin_applied") if callspec else None
        if twin and twin.only in item.nodeid:
            item.user_properties.append(("twin", f"{twin.failure} {twin.name}"))
            chosen.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.fixture(autouse=True)
def twin_applied(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        request.param.apply(monkeypatch)
        yield


def _ids(definition: Any, side: str) -> list[str]:
    return [marker.args[0] for marker in definition.iter_markers(side)]
