"""The record: what a run found, as one JSON file. docs/record.md has its keys."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress.keys import key
from pytest_rlregress.records import ctrf, surroundings
from pytest_rlregress.records.reader import FORMAT

if TYPE_CHECKING:
    from pytest_rlregress.harness import Harness


class Record:
    """Collects the reports of a run, wherever its tests ran, and writes them down when it ends.

    Raises:
        pytest.UsageError: Nothing can be written to the folder.
    """

    def __init__(self, config: pytest.Config, run: Harness, folder: Path) -> None:
        self._config, self._run, self._folder = config, run, folder
        self._start, self._clock = time.time(), time.monotonic()
        self._reports: dict[str, list[pytest.TestReport | pytest.CollectReport]] = {}
        self._files: dict[str, Path] = {}
        self._begun: set[str] = set()
        self._stopped = False
        self._extra: dict[str, Any] = {}
        self._written, self._unwritten = "", ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise pytest.UsageError(
                f"{run.settings.source['record_dir']}: no record can be written to {folder}: {error.strerror}. "
                "Allowed: a folder that is there or can be made."
            ) from None

    def pytest_sessionstart(self) -> None:
        """Look at what the run begins with."""
        self._extra = {"format": FORMAT, **surroundings.found(self._run, self._config.rootpath)}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests that are to run."""
        for item in session.items:
            self._reports.setdefault(item.nodeid, [])
            self._files[item.nodeid] = item.path

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note them under xdist, where each worker collects the same."""
        for nodeid in ids:
            self._reports.setdefault(nodeid, [])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that could not be imported, or was skipped as a whole, stands for its tests."""
        if not report.passed:
            self._reports[report.nodeid or "."] = [report]

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """A test that has begun is not one that is still to run, even if nothing more is heard of it."""
        self._begun.add(nodeid)
        self._files.setdefault(nodeid, self._config.rootpath / location[0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over."""
        self._reports.setdefault(report.nodeid, []).append(report)

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C, SIGTERM or ``pytest.exit()``."""
        self._stopped = True

    def pytest_internalerror(self) -> None:
        """An error of pytest or a plugin ends the run too."""
        self._stopped = True

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Write the record when all else is done, and also if that fails."""
        try:
            yield
        finally:
            if not self._config.option.collectonly:
                self._write(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where the record is."""
        if self._unwritten:
            terminalreporter.write_line(f"FAILED: the record could not be written: {self._unwritten}", red=True)
        elif self._written:
            terminalreporter.write_line(f"record: {self._written}")

    def _write(self, session: pytest.Session) -> None:
        record = self._record()
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._start))
        profile = self._extra["hardware"]["profile"] or "unknown"
        path = self._folder / f"{moment}-{profile}-{record['reportId'][:6]}.json"
        try:
            write(path, record)
            self._written = str(path)
        except OSError as error:  # must not cost the summary too
            self._unwritten = f"{path}: {error.strerror}"
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR

    def _record(self) -> dict[str, Any]:
        tests = [self._test(nodeid, reports) for nodeid, reports in self._reports.items()]
        unfinished = any(test["rawStatus"] in ("pending", "interrupted") for test in tests)
        start = round(self._start * 1000)
        return ctrf.report(
            tests,
            start=start,
            stop=start + round((time.monotonic() - self._clock) * 1000),  # clocks are set while tests run
            commit=self._extra["git"] and self._extra["git"]["commit"],
            extra={**self._extra, "interrupted": self._stopped or unfinished},
        )

    def _test(self, nodeid: str, reports: ctrf.Reports) -> dict[str, Any]:
        root = self._config.rootpath
        # What node ids are relative to depends on the arguments: a location is relative to the root folder.
        path = self._files.get(nodeid, root / nodeid.partition("::")[0])
        file = os.path.relpath(path, root)
        return ctrf.entry(key(nodeid, path), file, reports, begun=nodeid in self._begun)


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a file that is whole or not there, even if the machine goes down.

    Raises:
        OSError: It cannot be written, such as on a full disk; nothing is left of it.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "x", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
