"""Warn of what collection shows: failures without a test, and test files whose import brings the stack in."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_rlregress.session import Session

#: Modules of the stack that take seconds to import.
SLOW_MODULES = ("torch", "vllm", "ray", "transformers")
_SHIPPED = (Path(__file__).parent / "scenarios").resolve()
_IMPORTED: pytest.StashKey[tuple[str, float]] = pytest.StashKey()


class ScenarioWarning(pytest.PytestWarning):
    """Something about a scenario that should be mended, and does not keep it from running."""


def watch(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note what importing a test file brings into pytest's own process: around ``pytest_make_collect_report``."""
    before, start = {*SLOW_MODULES} & sys.modules.keys(), time.monotonic()
    report = yield
    brought = [name for name in SLOW_MODULES if name in sys.modules and name not in before]
    if brought and isinstance(collector, pytest.Module):
        collector.stash[_IMPORTED] = ", ".join(brought), time.monotonic() - start
    return report


def check(config: pytest.Config, run: Session, items: Sequence[pytest.Item]) -> None:
    """Warn, once a run, of test files that are slow to import and of failures that no test names.

    Raises:
        UsageError: Where the filters of warnings make errors of them.
    """
    from pytest_rlregress.containment.grouping import group_of
    from pytest_rlregress.containment.worker import CHANNEL

    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if CHANNEL in config.stash or worker != "gw0":  # a contained child, or one of xdist's: each of them collects all
        return
    items = [item for item in items if group_of(item)]
    for module in dict.fromkeys(item.getparent(pytest.Module) for item in items):
        if module is not None and _IMPORTED in module.stash:
            names, seconds = module.stash[_IMPORTED]
            _warn(
                module.path,
                f"{module.path.name} imports {names} at its top, or what it imports does: {seconds:.1f} s in pytest's "
                "own process before any test runs. Import it inside the tests and fixtures that use it.",
            )
    folders = [path for argument in config.args if (path := Path(argument.partition("::")[0]).resolve()).is_dir()]
    folders += {item.path.parent for item in items}
    named = {side.failure.id for item in items if (side := run.side(item))}
    for failure in run.catalogue.values():
        folder = failure.folder.resolve()
        collected = any(folder.is_relative_to(one) for one in folders)
        in_logs = failure.signatures and not failure.fidelity  # known by its lines alone
        if collected and not in_logs and failure.id not in named and not _is_named_in(folder, failure.id):
            _warn(
                failure.source,
                f"failure {failure.id} has no test: none in {folder} is marked reproduces({failure.id!r}) or "
                f"guards({failure.id!r}).",
            )


def is_shipped(path: Path) -> bool:
    """Return whether a test file is one of the shipped scenarios."""
    return path.resolve().is_relative_to(_SHIPPED)


def _is_named_in(folder: Path, failure_id: str) -> bool:
    """Whether a file there or one folder below says the id: not every run collects every file."""
    files = (path for pattern in ("*.py", "*/*.py") for path in folder.glob(pattern))
    return any(failure_id.encode() in path.read_bytes() for path in files)


def _warn(path: Path, text: str) -> None:
    try:
        warnings.warn_explicit(ScenarioWarning(text), None, filename=str(path), lineno=1)
    except ScenarioWarning as error:
        raise pytest.UsageError(str(error)) from None
