"""Look at what pytest collects: which tests are contained, which files are shipped, what importing them does.

A contained test has a marker of ours, or asks, by itself or through other fixtures, for a fixture that uses the stack:
such a test needs the fixture's components, and is a hardware test of a run on GPUs if the fixture computes there.
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from pytest_rlregress.containment import Death, Limits
    from pytest_rlregress.containment.pool import Pool

F = TypeVar("F", bound=Callable[..., Any])

#: In a failure's folder: checks of its remedy that touch no part of the stack. They are ordinary tests of this project,
#: and guards of a run in which the user's own function takes the remedy's place.
REMEDY_CHECKS = "remedy_checks.py"
#: Modules of the stack that take seconds to import.
SLOW_MODULES = ("torch", "vllm", "ray", "transformers")
_SHIPPED = (Path(__file__).parents[1] / "scenarios").resolve()
#: On a test file that brings some of them into pytest's own process: which, and how long that takes.
_IMPORTED: pytest.StashKey[tuple[str, float]] = pytest.StashKey()
#: Every fixture that uses the stack, by its name: ``uses_stack`` adds them.
STACK_FIXTURES: dict[str, StackFixture] = {}
#: Tests with one of these markers are contained, and those that ask for a fixture of the stack.
CONTAINED = ("reproduces", "guards", "needs", "hw", "isolated")

_DECLARED_IN = "pytest_rlregress.fixtures."
_ASKED: pytest.StashKey[dict[str, StackFixture]] = pytest.StashKey()


class ScenarioWarning(pytest.PytestWarning):
    """A test file that should be mended, and can run all the same."""


@dataclass(frozen=True)
class StackFixture:
    """What asking for a fixture of the stack means for a test.

    Attributes:
        needs: Components of the stack, parts of them or interfaces, as the marker ``needs`` takes them.
        starts: The part of a component that the fixture itself starts: its check leaves it running for the tests that
            ask for the fixture. A test needs it, too.
        hardware: Whether it computes on the GPUs of the run, where there are any. A file on a disk does not.
        shared: Whether it is made once a run, so that all tests that ask for it share a process, whatever their folder.
    """

    needs: tuple[str, ...] = ()
    starts: str | None = None
    hardware: bool = True
    shared: bool = False

    @property
    def components(self) -> tuple[str, ...]:
        """All that a test needs which asks for it."""
        return (*self.needs, self.starts) if self.starts else self.needs


def uses_stack(*needs: str, starts: str | None = None, hardware: bool = True, shared: bool = False) -> Callable[[F], F]:
    """Say, above the function of a fixture, what asking for the fixture means for a test: see ``StackFixture``."""

    def add(function: F) -> F:
        STACK_FIXTURES[function.__name__] = StackFixture(needs, starts, hardware, shared)
        return function

    return add


def asked_by(item: pytest.Item) -> dict[str, StackFixture]:
    """Return the fixtures of the stack that a test asks for: in its signature, by a marker, or through other fixtures.

    What ``request.getfixturevalue`` will ask for is not known, and a fixture of the same name that is not this
    package's is none of them, unless it takes the one it stands for.
    """
    if _ASKED not in item.stash:
        info: Any = getattr(item, "_fixtureinfo", None)  # a doctest of a text file has none
        names = STACK_FIXTURES.keys() & getattr(item, "fixturenames", ())
        found = (name for name in STACK_FIXTURES if name in names)  # in their order
        item.stash[_ASKED] = {name: STACK_FIXTURES[name] for name in found if info and _reaches(info, name)}
    return item.stash[_ASKED]


def is_contained(item: pytest.Item) -> bool:
    """Return whether a test runs in a process of its own: by a marker or by a fixture that it asks for."""
    return bool(asked_by(item)) or any(map(item.get_closest_marker, CONTAINED))


def is_ours(fixturedef: Any) -> bool:
    """Return whether a fixture's definition is that of this package."""
    return str(getattr(fixturedef.func, "__module__", "")).startswith(_DECLARED_IN)


def _reaches(info: Any, name: str) -> bool:
    """Return whether the name leads to this package's fixture: one that stands for it may ask for it in turn."""
    for fixturedef in reversed(info.name2fixturedefs.get(name, ())):
        if is_ours(fixturedef):
            return True
        if name not in fixturedef.argnames:
            return False
    return False


def watch(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note what importing a test file brings into pytest's own process: around ``pytest_make_collect_report``."""
    before, start = {*SLOW_MODULES} & sys.modules.keys(), time.monotonic()
    report = yield
    brought = [name for name in SLOW_MODULES if name in sys.modules and name not in before]
    if brought and isinstance(collector, pytest.Module):
        collector.stash[_IMPORTED] = ", ".join(brought), time.monotonic() - start
    return report


@contextmanager
def usage_errors_shown(session: pytest.Session, items: list[pytest.Item]) -> Iterator[None]:
    """Make a usage error in one of xdist's workers an error of collection: xdist loses what ends a worker."""
    try:
        yield
    except pytest.UsageError as error:
        if not hasattr(session.config, "workerinput"):
            raise
        nodeid = items[0].nodeid.partition("::")[0]
        items.clear()
        report = pytest.CollectReport(nodeid, "failed", str(error), [])
        session.config.hook.pytest_collectreport(report=report)


def warn_of_slow_imports(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Warn, once a run, of test files with contained tests that bring the stack into pytest's own process.

    Raises:
        UsageError: Where the filters of warnings make errors of them.
    """
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if worker != "gw0":  # a contained child, or one of xdist's: each of them collects all
        return
    for module in dict.fromkeys(item.getparent(pytest.Module) for item in items if is_contained(item)):
        if module is not None and _IMPORTED in module.stash:
            names, seconds = module.stash[_IMPORTED]
            text = (
                f"{module.path.name} imports {names} at its top, or what it imports does: {seconds:.1f} s in pytest's "
                "own process before any test runs. Import it inside the tests and fixtures that use it."
            )
            try:
                warnings.warn_explicit(ScenarioWarning(text), None, filename=str(module.path), lineno=1)
            except ScenarioWarning as error:
                raise pytest.UsageError(str(error)) from None


@contextmanager
def warnings_shown(path: Path) -> Iterator[None]:
    """Show the warnings of a shipped scenario, where the run's filters make errors of them: they aren't verdicts."""
    if all(action != "error" for action, *_ in warnings.filters) or not is_shipped(path):
        yield
        return
    shown = [("default" if action == "error" else action, *rest) for action, *rest in warnings.filters]
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filters[:] = shown  # type: ignore[index]
        yield


def is_shipped(path: Path) -> bool:
    """Return whether a test file is one of the shipped scenarios."""
    return path.resolve().is_relative_to(_SHIPPED)


def stable_id(nodeid: str, path: Path) -> str:
    """Return ``batch/test_x.py::test_y[a]`` for a test of a shipped scenario, else the node id.

    Args:
        nodeid: pytest's, which begins with a path of the file; where from depends on pytest's arguments.
        path: The file.
    """
    if not is_shipped(path):
        return nodeid
    _, colons, rest = nodeid.partition("::")
    return f"{path.resolve().relative_to(_SHIPPED).as_posix()}{colons}{rest}"


class ModuleThatDied(pytest.Module):
    """A test file whose import ended the process that tried it."""

    death: Death

    def collect(self) -> list[pytest.Item]:
        """Say how the process died, as an error of collection."""
        from pytest_rlregress.containment.post_mortem import describe_death

        text, _ = describe_death(self.death)
        raise self.CollectError(f"{self.path}: import of the test module: {text}")


def try_import(
    path: Path, parent: pytest.Collector, pool: Pool, limits: Limits, *, every_file: bool
) -> pytest.Module | None:
    """Import a file with tests of ours in a child; return what is collected in its place if the child died of it.

    With ``every_file`` any other test file is tried too.
    """
    from pytest_rlregress.containment import Death
    from pytest_rlregress.containment.pool import ContainmentError

    ours = rf"\bmark\.({'|'.join(CONTAINED)})\b|\b({'|'.join(STACK_FIXTURES)})\b"
    if not every_file and not re.search(ours.encode(), path.read_bytes()):
        return None
    try:
        death = pool.try_import(path, limits)
    except (ContainmentError, OSError) as error:
        death = Death("crashed", None, f"could not be contained: {error}", "")
    if death is None:
        return None
    module: ModuleThatDied = ModuleThatDied.from_parent(parent, path=path)
    module.death = death
    return module
