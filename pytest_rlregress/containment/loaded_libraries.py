"""Report the native libraries that a test's processes have loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress.containment.reports import decides
from pytest_rlregress.stack import library_version, mapped_libraries
from pytest_rlregress.util.processes import descendants


class LoadedLibraries:
    """In the child: sends the libraries that are mapped when a test has ended, before its fixtures are torn down.

    Args:
        send: Takes a kind and a value for the pytest process.
        reaper: The process below which the test's descendants are.
    """

    def __init__(self, send: Callable[[str, Any], None], reaper: int) -> None:
        self._send, self._reaper = send, reaper

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send paths by family; to read the map of a process that has torch and vllm takes 0.7 ms."""
        if decides(report):
            with suppress(Exception):  # what a test has patched, such as os.listdir, is so until its teardown
                found: dict[str, list[str]] = {}
                for pid in (os.getpid(), *(process.pid for process in descendants(self._reaper))):
                    with suppress(OSError):  # gone meanwhile
                        for family, paths in mapped_libraries(pid).items():
                            found.setdefault(family, []).extend(map(str, paths))
                self._send("libraries", found)


class ReportedLibraries:
    """What the reports of a session have said of libraries so far: each is said once."""

    def __init__(self) -> None:
        self._paths: set[tuple[str, str]] = set()

    def properties(self, mapped: Mapping[str, Iterable[str]]) -> list[tuple[str, object]]:
        """The user properties of the test that has mapped these: the libraries that have not been said yet."""
        new: dict[str, list[dict[str, str | None]]] = {}
        for family, paths in mapped.items():
            for path in dict.fromkeys(paths):
                if (family, path) not in self._paths:
                    self._paths.add((family, path))
                    new.setdefault(family, []).append({"path": path, "version": _version(Path(path))})
        return [("rlregress_libraries", json.dumps(new))] if new else []


def _version(path: Path) -> str | None:
    with suppress(OSError):  # its environment may be gone
        return library_version(path)
    return None
