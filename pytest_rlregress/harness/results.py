"""Collect the result of each test of a run from pytest's reports, wherever the tests run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from pytest_rlregress.harness.checks import log_reports
from pytest_rlregress.harness.collection import stable_id
from pytest_rlregress.harness.reports import read_properties
from pytest_rlregress.records.record_types import HarnessProperties, RawStatus, RecordedTest, Status

Report: TypeAlias = pytest.TestReport | pytest.CollectReport
Reports: TypeAlias = Sequence[Report]

#: Properties of a report that are JSON objects, as text: they are objects in a record too.
_OBJECTS = ("measured", "golden", "outcome")


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
        self._reports: dict[str, list[Report]] = {}
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
        self._checked.add(read_properties(report).get("component", ""))
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
        root = self._config.rootpath
        for nodeid in nodeids:
            # What node ids are relative to depends on the arguments: a location is relative to the root folder.
            path = self._files.get(nodeid, root / nodeid.partition("::")[0])
            reports = self._reports.setdefault(nodeid, [])
            name, file = stable_id(nodeid, path), os.path.relpath(path, root)
            self.tests[nodeid] = _make_entry(name, file, reports, begun=nodeid in self._begun)


def _make_entry(name: str, file: str, reports: Reports, *, begun: bool) -> RecordedTest:
    """Build a test's entry in the record from its reports, of several attempts if it was run again."""
    starts = [index for index, report in enumerate(reports) if index and report.when == "setup"]
    attempts = [reports[begin:end] for begin, end in zip([0, *starts], [*starts, len(reports)], strict=True)]
    *earlier, last = attempts
    status, word = _find_status(last, begun)
    extra = _read_properties(last)
    if status == "failed":  # by what came after the act that was expected to fail
        extra.expected = ""
    failed_before = any(_find_status(attempt, begun)[0] == "failed" for attempt in earlier)
    return RecordedTest(
        name=name,
        status=status,
        raw_status=word,
        duration=round(sum(getattr(report, "duration", 0) for report in last) * 1000),
        file_path=file,
        extra=extra,
        retries=len(earlier),
        flaky=status == "passed" and failed_before if earlier else None,
        message="\n".join(filter(None, map(_find_message, last))),
        trace="\n".join(filter(None, map(_find_trace, last))),
    )


def _find_status(reports: Reports, begun: bool) -> tuple[Status, RawStatus]:
    """Return the format's status and pytest's own word."""
    failed = [report for report in reports if _is_failure(report)]
    if failed:
        return "failed", "error" if all(r.when in ("collect", "setup", "teardown") for r in failed) else "failed"
    decided = [report for report in reports if report.when != "teardown"]
    if not decided or (decided[-1].passed and decided[-1].when == "setup"):
        return ("other", "interrupted") if begun else ("pending", "pending")
    expected = hasattr(decided[-1], "wasxfail")
    if decided[-1].skipped:
        return ("other", "xfailed") if expected else ("skipped", "skipped")
    return "passed", "xpassed" if expected else "passed"


def _is_failure(report: Report) -> bool:
    return report.outcome not in ("passed", "skipped")  # plugins that run a test again call a failed attempt "rerun"


def _read_properties(reports: Reports) -> HarnessProperties:
    """Collect what the harness put on the reports of a test."""
    found: dict[str, Any] = {}
    for report in reports:
        found |= read_properties(report)
    for name in _OBJECTS:
        if name in found:
            try:  # NaN and infinity become null
                found[name] = json.loads(str(found[name]), parse_constant=lambda _: None)
            except ValueError:  # another plugin's
                found[name] = None
            if not isinstance(found[name], dict):
                del found[name]
    return msgspec.convert(found, HarnessProperties)


def _find_message(report: Report) -> str:
    """Return in a line why a test failed or did not run."""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        return str(getattr(report, "wasxfail", "") or reason).removeprefix("Skipped: ")
    if not _is_failure(report):
        return ""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip().partition("\n")[0]


def _find_trace(report: Report) -> str:
    """Return the report's text where a test failed, or what came out where that was documented."""
    if _is_failure(report):
        return report.longreprtext
    return "\n".join(text for title, text in report.sections if title.endswith(": what came out"))
