"""Collect a run's reports and write its record."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_rlregress.node_ids import stable_id
from pytest_rlregress.records import entries, record_types, run_context
from pytest_rlregress.records.journal import SUFFIX, RunJournal
from pytest_rlregress.records.record_types import JournalLine, Record, RecordedTest, State
from pytest_rlregress.util.files import write_whole

if TYPE_CHECKING:
    from pytest_rlregress.session import Session


class RecordWriter:
    """Collects the reports of a run, wherever its tests ran, and writes the record when it ends.

    Raises:
        pytest.UsageError: Nothing can be written to the folder.
    """

    _head: Record  # and these two from when the session starts
    _path: Path
    _journal: RunJournal | None = None

    def __init__(self, config: pytest.Config, session: Session, folder: Path) -> None:
        self._config, self._session, self._folder = config, session, folder
        self._start, self._clock = time.time(), time.monotonic()
        self._tests: dict[str, RecordedTest] = {}
        self._reports: dict[str, list[entries.Report]] = {}
        self._files: dict[str, Path] = {}
        self._begun: set[str] = set()
        self._stopped = False
        self._written, self._unwritten = "", ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise pytest.UsageError(
                f"{session.settings.source['record_dir']}: no record can be written to {folder}: {error.strerror}. "
                "Allowed: a folder that is there or can be made."
            ) from None

    @pytest.hookimpl(trylast=True)  # a run that another plugin refuses leaves no journal
    def pytest_sessionstart(self) -> None:
        """Describe what the run runs on, and begin the journal."""
        extra = run_context.found(self._session, self._config)
        self._head = head = record_types.begun(round(self._start * 1000), extra)
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._start))
        name = f"{moment}-{extra.hardware.profile or 'unknown'}-{head.report_id[:6]}"
        self._path = self._folder / f"{name}.json"
        if not self._config.option.collectonly:
            self._journal = RunJournal(self._folder / f"{name}{SUFFIX}", head)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests that are to run."""
        self._files.update((item.nodeid, item.path) for item in session.items)
        self._note([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note them under xdist, where each worker collects the same."""
        self._note([nodeid for nodeid in ids if nodeid not in self._reports])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be imported, or was skipped as a whole, in place of its tests."""
        if not report.passed:
            self._reports[report.nodeid or "."] = [report]
            self._note([report.nodeid or "."])

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Note that a test has begun."""
        self._begun.add(nodeid)
        self._files.setdefault(nodeid, self._config.rootpath / location[0])
        self._note([nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the report of a test's phase."""
        self._reports.setdefault(report.nodeid, []).append(report)
        self._note([report.nodeid])

    def pytest_keyboard_interrupt(self) -> None:
        """Note that the run was interrupted: Ctrl-C, SIGTERM or ``pytest.exit()``."""
        self._stopped = True

    def pytest_internalerror(self) -> None:
        """Note that an error of pytest or a plugin ended the run."""
        self._stopped = True

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Write the record when all else is done, and also if that fails."""
        try:
            yield
        finally:
            if self._journal is not None:
                self._write(session, self._journal)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where the record is."""
        if self._journal is not None and self._journal.problem:
            terminalreporter.write_line(f"the journal of the run could not be kept: {self._journal.problem}")
        if self._unwritten:
            terminalreporter.write_line(f"FAILED: the record could not be written: {self._unwritten}", red=True)
        elif self._written:
            terminalreporter.write_line(f"record: {self._written}")

    def _write(self, session: pytest.Session, journal: RunJournal) -> None:
        unfinished = any(test.raw_status in ("pending", "interrupted") for test in self._tests.values())
        state: State = "interrupted" if self._stopped or unfinished else "complete"
        record = record_types.with_tests(self._head, self._tests.values(), state, self._now())
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # it may have gone while tests ran
            write_whole(self._path, json.dumps(msgspec.to_builtins(record), indent=1), sync=True)
            self._written = str(self._path)
        except OSError as error:  # must not cost the summary too
            self._unwritten = f"{self._path}: {error.strerror}"
            if journal.path.exists():
                self._unwritten += f"; {journal.path.name} holds what was kept of it"
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR
        journal.close(keep=not self._written)

    def _note(self, nodeids: Sequence[str]) -> None:
        """Add to the run, and to its journal, what is known of these tests by now."""
        known = {nodeid: self._test(nodeid) for nodeid in nodeids}
        self._tests |= known
        if self._journal is not None:
            self._journal.write([JournalLine(self._now(), nodeid, test) for nodeid, test in known.items()])

    def _test(self, nodeid: str) -> RecordedTest:
        root = self._config.rootpath
        # What node ids are relative to depends on the arguments: a location is relative to the root folder.
        path = self._files.get(nodeid, root / nodeid.partition("::")[0])
        reports = self._reports.setdefault(nodeid, [])
        return entries.entry(stable_id(nodeid, path), os.path.relpath(path, root), reports, begun=nodeid in self._begun)

    def _now(self) -> int:
        """The time in ms since 1970, by a clock that is not set while tests run."""
        return round((self._start + time.monotonic() - self._clock) * 1000)
