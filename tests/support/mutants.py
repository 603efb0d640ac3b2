"""Mutants: a broken remedy or another stack, under which a failure's tests must come to another verdict.

They are in ``mutants.py`` of the failure's folder. Loaded into a run of the scenarios with ``-p mutants``, this runs
each sided test under each of its mutants and nothing else; ``tests/stack/scenarios/test_mutants.py`` looks at the
verdicts. A mutant that brought its verdict is not tried further. The file that the environment variable ``CHOSEN``
names has the keys of those to run, a line each.
"""

from __future__ import annotations

import functools
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress import remedies
from pytest_rlregress.containment import CHANNEL
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.harness.collection import asked_by
from pytest_rlregress.harness.items import find

CATALOGUE = catalogue.load([catalogue.SHIPPED])
MUTANTS: list[Mutant] = []
CHOSEN = "RLREGRESS_MUTANTS_CHOSEN"
_SUBJECTS = [failure.subject for failure in CATALOGUE.values() if failure.subject]
#: Options that put each remedy in its own place, so that its checks in remedy_checks.py are guards of the run.
SUBJECTS = ["-o", "rlregress_subjects=" + "\n".join(f"{one} = pytest_rlregress.remedies:{one}" for one in _SUBJECTS)]


@dataclass(frozen=True)
class Mutant:
    """What to change before a test of ``failure`` begins, and the verdict its side must then come to.

    Attributes:
        verdict: Of a guard ``regressed`` or ``held``; else ``absent``, ``changed``, ``reproduced`` or ``returned``.
        apply: Takes pytest's monkeypatch, in the process of the test.
        only: Part of the ids of the tests it is for: a mutant need not run those that take long.
        hw: The hardware of the run. Without such a card NVML's stand-in has one, and the mutant takes CUDA's part.
    """

    name: str
    failure: Failure
    verdict: str
    apply: Callable[[pytest.MonkeyPatch], None]
    only: str
    hw: str = "cpu"

    @property
    def key(self) -> str:
        """Return the name that its verdicts are counted by."""
        return f"{self.failure.id} {self.name}"

    @property
    def side(self) -> str:
        return "guards" if self.verdict in ("regressed", "held") else "reproduces"


def mutant(verdict: str, only: str = "", hw: str = "cpu") -> Callable[..., Any]:
    """Register ``function(monkeypatch)`` as a mutant of the failure in whose folder it is; see ``Mutant``."""

    def register(apply: Callable[[pytest.MonkeyPatch], None]) -> Any:
        failure = _failure_of(apply.__module__.rpartition(".")[0])
        MUTANTS.append(Mutant(apply.__name__, failure, verdict, apply, only, hw))
        return apply

    return register


def broken(only: str = "") -> Callable[..., Any]:
    """Register a function that takes the place of the failure's remedy: its guards must be ``regressed``."""

    def register(function: Callable[..., Any]) -> Any:
        failure = _failure_of(function.__module__.rpartition(".")[0])
        assert failure.subject, f"{failure.id} has no subject"

        def apply(monkeypatch: pytest.MonkeyPatch) -> None:
            monkeypatch.setattr(remedies, failure.subject, function)

        MUTANTS.append(Mutant(function.__name__, failure, "regressed", apply, only))
        return function

    return register


def replaces(verdict: str, target: str, only: str = "") -> Callable[..., Any]:
    """Register a mutant that puts a function in the place of ``target``, a dotted path.

    A path that begins with a dot begins in the failure's folder. A function whose first parameter is ``original`` is
    given what it replaces.
    """
    package = sys._getframe(1).f_globals["__package__"]
    holder, _, name = (package + target if target.startswith(".") else target).rpartition(".")

    def register(function: Callable[..., Any]) -> Any:
        def apply(monkeypatch: pytest.MonkeyPatch) -> None:
            owner, put = pkgutil.resolve_name(holder), function
            if next(iter(inspect.signature(function).parameters), "") == "original":
                original = getattr(owner, name)

                def put(*args: Any, **options: Any) -> Any:
                    return function(original, *args, **options)

            monkeypatch.setattr(owner, name, put)

        called = function.__name__ if function.__name__.isidentifier() else f"{name}_{verdict}"
        MUTANTS.append(Mutant(called, _failure_of(package), verdict, apply, only))
        return function

    return register


def _failure_of(package: str) -> Failure:
    """Return the failure whose folder is ``package``."""
    return CATALOGUE[package.rpartition(".")[2].replace("_", "-")]


def fails(*args: Any, **kwargs: Any) -> None:
    """Take the place of a function that must fail otherwise than documented."""
    raise TypeError("this stack wants it said in another way")


def failing(error: Exception) -> Callable[..., None]:
    """Return a function that raises ``error``, whatever it is called with."""

    def function(*args: Any, **options: Any) -> None:
        raise error

    return function


for _failure in CATALOGUE.values():
    if (_failure.folder / "mutants.py").exists():
        import_module(f"pytest_rlregress.scenarios.{_failure.area}.{_failure.folder.name}.mutants")
# Where the failure is gone every guard holds: a fix upstream isn't a regression.
MUTANTS += [
    replace(mutant, name=f"guards_where_{mutant.name}", verdict="held", only="")
    for mutant in MUTANTS
    if mutant.verdict == "absent"
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = _chosen()
    found = [
        mutant
        for mutant in MUTANTS
        if mutant.failure.id in _ids(metafunc.definition, mutant.side) and mutant.key in chosen
    ]
    if found:
        metafunc.fixturenames.append("mutant_applied")
        metafunc.parametrize("mutant_applied", found, ids=[mutant.name for mutant in found], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = []
    for item in items:
        mutant = _mutant(item)
        if mutant and mutant.only in item.nodeid:
            item.user_properties.append(("mutant", mutant.key))
            chosen.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = sorted(chosen, key=_cost)


def _cost(item: pytest.Item) -> tuple[bool, str, int]:
    """Of a mutant's tests the quick ones come first: they may save it those of an engine or of an own process."""
    fixtures = asked_by(item).values()
    shared = any(fixture.shared for fixture in fixtures)  # their process is that of no folder
    cost = 2 if item.get_closest_marker("isolated") else int(any(fixture.starts for fixture in fixtures))
    return shared, "" if shared else str(catalogue.area_of(item.path)), cost


def pytest_collection_finish(session: pytest.Session) -> None:
    if CHANNEL not in session.config.stash:  # a contained child runs what it is told to
        session.config.pluginmanager.register(NoMoreThanNeeded(session))


class NoMoreThanNeeded:
    """Takes the tests of a mutant that has brought its verdict out of the session."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at the verdict of a test under a mutant."""
        said = dict(report.user_properties)
        items = self._session.items
        place = next((place for place, item in enumerate(items) if item.nodeid == report.nodeid), None)
        mutant = None if place is None else _mutant(items[place])
        verdict = said.get("rlregress_verdict")
        if not mutant or place is None or verdict != mutant.verdict or verdict == "held":  # that is wanted of all
            return
        # The child has been told already which test is the next.
        told = next(
            (n for n, item in enumerate(items) if n > place and (test := find(item)) and not test.unavailable), place
        )
        items[told + 1 :] = [item for item in items[told + 1 :] if (other := _mutant(item)) and other.key != mutant.key]


@pytest.fixture(autouse=True)
def mutant_applied(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if hasattr(request, "param"):  # a component is checked as it is
            request.param.apply(monkeypatch)
        yield


@functools.cache
def _chosen() -> frozenset[str]:
    return frozenset(Path(os.environ[CHOSEN]).read_text().splitlines())


def _mutant(item: pytest.Item) -> Mutant | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("mutant_applied") if callspec else None


def _ids(definition: Any, side: str) -> list[str]:
    return [marker.args[0] for marker in definition.iter_markers(side)]
