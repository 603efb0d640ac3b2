"""Collect the result of each test of a run from pytest's reports, wherever the tests run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_rlregress.harness import properties
from pytest_rlregress.harness.checks import log_reports
from pytest_rlregress.harness.node_ids import stable_id
from pytest_rlregress.records import entries
from pytest_rlregress.records.record_types import RecordedTest


class RunResults:
    """The results of a run so far.

    Attributes:
        tests: By node id.
        locations: Of each test: its file, as seen from the root folder, and its line, counted from 0.
        stopped: Whether the run was ended before its end.
        problem: Why the run fails whatever its tests say; "" if it doesn't.
        written: The record, once it is written.
        folder: Where the records of earlier runs are; None for a run that writes none.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.tests: dict[str, RecordedTest] = {}
        self.locations: dict[str, tuple[str, int | None]] = {}
        self.stopped, self.problem = False, ""
        self.written: Path | None = None
        self.folder: Path | None = None
        self._reports: dict[str, list[entries.Report]] = {}
        self._files: dict[str, Path] = {}
        self._begun: set[str] = set()
        self._checked: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests that are to run."""
        self._files.update((item.nodeid, item.path) for item in session.items)
        self.note([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note them under xdist, where each worker collects the same."""
        self.note([nodeid for nodeid in ids if nodeid not in self._reports])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be imported, or was skipped as a whole, in place of its tests."""
        if not report.passed:
            nodeid = report.nodeid or "."
            self._reports[nodeid] = [report]
            self.locations[nodeid] = nodeid, None
            self.note([nodeid])

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Note that a test has begun."""
        self._begun.add(nodeid)
        self._files.setdefault(nodeid, self._config.rootpath / location[0])
        self.note([nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the report of a test's phase; before, log the checks of components that were made for the test."""
        log_reports(self._config, report, self._checked)
        self._checked.add(properties.read(report).get("component", ""))
        self._reports.setdefault(report.nodeid, []).append(report)
        self.locations[report.nodeid] = report.location[:2]
        self.note([report.nodeid])

    def catch_up(self) -> None:
        """Note the reports that came before this was registered: pytest's own terminal has them."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        reports = [report for some in terminal.stats.values() for report in some] if terminal else []
        for report in reports:
            if isinstance(report, pytest.CollectReport):
                self.pytest_collectreport(report)
        for report in sorted((one for one in reports if isinstance(one, pytest.TestReport)), key=lambda one: one.start):
            self.pytest_runtest_logreport(report)

    def pytest_keyboard_interrupt(self) -> None:
        """Note that the run was interrupted: Ctrl-C, SIGTERM or ``pytest.exit()``."""
        self.stopped = True

    def pytest_internalerror(self) -> None:
        """Note that an error of pytest or a plugin ended the run."""
        self.stopped = True

    def note(self, nodeids: Sequence[str]) -> None:
        """Note what is known of these tests by now."""
        self.tests |= {nodeid: self._test(nodeid) for nodeid in nodeids}

    def _test(self, nodeid: str) -> RecordedTest:
        root = self._config.rootpath
        # What node ids are relative to depends on the arguments: a location is relative to the root folder.
        path = self._files.get(nodeid, root / nodeid.partition("::")[0])
        reports = self._reports.setdefault(nodeid, [])
        return entries.entry(stable_id(nodeid, path), os.path.relpath(path, root), reports, begun=nodeid in self._begun)
