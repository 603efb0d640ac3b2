"""Mutants: a broken remedy or another stack, under which a scenario's tests must come to another verdict.

Loaded into a run of the scenarios with ``-p mutants``, this runs each sided test once under each of its mutants and
nothing else; ``tests/test_mutants.py`` looks at the verdicts. One room per scenario folder holds the mutants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress import catalogue, remedies

CATALOGUE = catalogue.load([catalogue.SHIPPED])
MUTANTS: list[Mutant] = []


@dataclass(frozen=True)
class Mutant:
    """What to change before a test of ``failure`` begins, and the verdict its side must then come to.

    Attributes:
        verdict: ``regressed`` or ``held`` for guards; ``absent``, ``changed``, ``reproduced`` or
            ``returned`` for the others.
        apply: Takes pytest's monkeypatch, in the process of the test.
        only: Part of the ids of the tests it is for: a mutant need not run those that take long.
    """

    name: str
    failure: str
    verdict: str
    apply: Callable[[pytest.MonkeyPatch], None]
    only: str

    @property
    def side(self) -> str:
        return "guards" if self.verdict in ("regressed", "held") else "reproduces"

    @property
    def folder(self) -> str:
        return CATALOGUE[self.failure].source.parent.name


def mutant(failure: str, verdict: str, only: str = "") -> Callable[..., Any]:
    """Register ``function(monkeypatch)`` as a mutant of a failure."""

    def register(apply: Callable[[pytest.MonkeyPatch], None]) -> Any:
        MUTANTS.append(Mutant(apply.__name__, failure, verdict, apply, only))
        return apply

    return register


def broken(failure: str, only: str = "") -> Callable[..., Any]:
    """Register a function that takes the place of a failure's remedy: its guards must be ``regressed``."""

    def register(function: Callable[..., Any]) -> Any:
        subject = CATALOGUE[failure].subject
        assert subject, f"{failure} has no subject"

        def apply(monkeypatch: pytest.MonkeyPatch) -> None:
            monkeypatch.setattr(remedies, subject, function)

        MUTANTS.append(Mutant(function.__name__, failure, "regressed", apply, only))
        return function

    return register


for room in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"mutants.{room.stem}")
# Where the failure is gone every guard holds: a fix upstream is no regression.
MUTANTS += [
    replace(mutant, name=f"guards_where_{mutant.name}", verdict="held", only="")
    for mutant in MUTANTS
    if mutant.verdict == "absent"
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = [mutant for mutant in MUTANTS if mutant.failure in _ids(metafunc.definition, mutant.side)]
    if found:
        metafunc.fixturenames.append("mutant_applied")
        metafunc.parametrize("mutant_applied", found, ids=[mutant.name for mutant in found], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        mutant = callspec.params.get("mutant_applied") if callspec else None
        if mutant and mutant.only in item.nodeid:
            item.user_properties.append(("mutant", f"{mutant.failure} {mutant.name}"))
            chosen.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.fixture(autouse=True)
def mutant_applied(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if hasattr(request, "param"):  # a component is checked as it is
            request.param.apply(monkeypatch)
        yield


def _ids(definition: Any, side: str) -> list[str]:
    return [marker.args[0] for marker in definition.iter_markers(side)]
