"""Look at test files as they are collected: is it a shipped scenario, does its import bring the stack in, or die."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_rlregress.harness.stack_fixtures import CONTAINED, STACK_FIXTURES

if TYPE_CHECKING:
    from pytest_rlregress.containment import Death, Limits
    from pytest_rlregress.containment.pool import Pool

#: In a failure's folder: checks of its remedy that touch no part of the stack. They are ordinary tests of this project,
#: and guards of a run in which the user's own function takes the remedy's place.
REMEDY_CHECKS = "remedy_checks.py"
#: Modules of the stack that take seconds to import.
SLOW_MODULES = ("torch", "vllm", "ray", "transformers")
_SHIPPED = (Path(__file__).parents[1] / "scenarios").resolve()
#: On a test file that brings some of them into pytest's own process: which, and how long that takes.
IMPORTED: pytest.StashKey[tuple[str, float]] = pytest.StashKey()


def watch(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note what importing a test file brings into pytest's own process: around ``pytest_make_collect_report``."""
    before, start = {*SLOW_MODULES} & sys.modules.keys(), time.monotonic()
    report = yield
    brought = [name for name in SLOW_MODULES if name in sys.modules and name not in before]
    if brought and isinstance(collector, pytest.Module):
        collector.stash[IMPORTED] = ", ".join(brought), time.monotonic() - start
    return report


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
        from pytest_rlregress.containment.reports import describe_death

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
