"""Look at test files as they are collected: is one of the shipped scenarios, does its import bring the stack in."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
