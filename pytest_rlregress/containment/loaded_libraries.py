"""Report the native libraries that a test's processes have loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_rlregress import properties
from pytest_rlregress.containment.reports import decides
from pytest_rlregress.stack import library_version, mapped_libraries
from pytest_rlregress.util.processes import descendants


class LoadedLibraries:
    """In the child: puts the libraries that are mapped when a test has ended on its reports, each once.

    Args:
        reaper: The process below which the test's descendants are.
    """

    def __init__(self, reaper: int) -> None:
        self._reaper = reaper
        self._known: set[tuple[str, Path]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Look before the fixtures are torn down; to read the map of a process that has torch and vllm takes 0.7 ms."""
        report = yield
        if decides(report):
            with suppress(Exception):  # what a test has patched, such as os.listdir, is so until its teardown
                new = self._new()
                for one in (report, item):  # junit reads the report of the teardown
                    properties.add(one, libraries=json.dumps(new) if new else "")
        return report

    def _new(self) -> dict[str, list[dict[str, str | None]]]:
        """Path and version of the libraries that no test here had before, by family."""
        found: set[tuple[str, Path]] = set()
        for pid in (os.getpid(), *(process.pid for process in descendants(self._reaper))):
            with suppress(OSError):  # gone meanwhile
                found |= {(family, path) for family, paths in mapped_libraries(pid).items() for path in paths}
        new: dict[str, list[dict[str, str | None]]] = {}
        for family, path in sorted(found - self._known):
            new.setdefault(family, []).append({"path": str(path), "version": _version(path)})
        self._known |= found
        return new


def _version(path: Path) -> str | None:
    with suppress(OSError):  # its environment may be gone
        return library_version(path)
    return None
