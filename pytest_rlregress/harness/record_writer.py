"""Write the record of a run when it ends, and until then its journal, so that a killed run leaves that.

The journal holds one JSON object a line: first the record as it would be without any test, then what became known of a
test, each time again; the last line about a test counts. A line is handed to the operating system at once, so that a
killed pytest loses at most the one that it was writing. It isn't synced to the disk, which may take longer there than
a test does: a machine that goes down can cost the last seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from pytest_rlregress.harness import run_context
from pytest_rlregress.harness.results import RunResults
from pytest_rlregress.records import record_types
from pytest_rlregress.records.answer import with_tests
from pytest_rlregress.records.checking import make_digest
from pytest_rlregress.records.reader import JOURNAL
from pytest_rlregress.records.record_types import JournalLine, Record, State
from pytest_rlregress.records.remote import RemoteError, RemoteRecords
from pytest_rlregress.util import files
from pytest_rlregress.util.text import clean, clean_lines

if TYPE_CHECKING:
    from pytest_rlregress.harness.session import Session


class RecordWriter(RunResults):
    """Collects the results of a run and writes them to a folder, from which they are copied where a URL is named.

    Raises:
        pytest.UsageError: Nothing can be written there.
    """

    _head: Record  # and these two from when the session starts
    _path: Path
    _journal: Journal | None = None
    _is_over = False

    def __init__(self, config: pytest.Config, session: Session, place: Path | str) -> None:
        super().__init__(config)
        self._remote = RemoteRecords(place) if isinstance(place, str) else None
        folder = self._remote.unsent if self._remote else Path(place)
        self.folder = self._remote.copies if self._remote else folder
        self._session, self._folder = session, folder
        self._start, self._clock = time.time(), time.monotonic()
        self._unwritten = ""
        source = session.settings.source["record_dir"]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            if self._remote:
                self._remote.begin_run(session.profile_id)
        except OSError as error:
            raise pytest.UsageError(
                f"{source}: no record can be written to {clean(str(folder), 300)}: {error.strerror}. "
                "Allowed: a folder that is there or can be made."
            ) from None
        except RemoteError as error:
            raise pytest.UsageError(clean_lines(f"{source}: no record can be written there: {error}")) from None

    @pytest.hookimpl(trylast=True)  # a run that another plugin refuses leaves no journal
    def pytest_sessionstart(self) -> None:
        """Describe what the run runs on, and begin the journal."""
        extra = run_context.describe_run(self._session, self._config)
        self._head = head = record_types.begun(round(self._start * 1000), extra)
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._start))
        name = f"{moment}-{extra.hardware.profile or 'unknown'}-{head.report_id[:6]}"
        self._path = self._folder / f"{name}.json"
        if not self._config.option.collectonly:
            self._journal = Journal(self._folder / f"{name}{JOURNAL}", head)
            # A run that is interrupted while xdist's workers start has no end of its session.
            self._config.add_cleanup(self._write_once)

    def note(self, nodeids: Sequence[str]) -> None:
        """Note what is known of these tests by now, in the journal too."""
        super().note(nodeids)
        if self._journal is not None:
            self._journal.write([JournalLine(self._now(), nodeid, self.tests[nodeid]) for nodeid in nodeids])

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Write the record when all else is done, and also if that fails."""
        try:
            yield
        finally:
            self._write_once(session)

    def _write_once(self, session: pytest.Session | None = None) -> None:
        """Write the record, the first time this is called; without a session the run did not come to its end."""
        if self._journal is None or self._is_over:
            return
        self._is_over = True
        self.stopped = self.stopped or session is None
        self._write(session, self._journal)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where the record is."""
        if self._journal is not None and self._journal.problem:
            terminalreporter.write_line(f"the journal of the run could not be kept: {self._journal.problem}")
        if self._unwritten:
            terminalreporter.write_line(f"FAILED: {self._unwritten}", red=True)
        elif self.written:
            copied = f"{self._remote.url}/{self._path.name}, here " if self._remote else ""
            terminalreporter.write_line(clean_lines(f"record: {copied}{self.written}"))

    def _write(self, session: pytest.Session | None, journal: Journal) -> None:
        unfinished = any(test.raw_status in ("pending", "interrupted") for test in self.tests.values())
        state: State = "interrupted" if self.stopped or unfinished else "complete"
        record = with_tests(self._head, self.tests.values(), state, self._now(), self.problem)
        document = msgspec.to_builtins(record)
        document["results"]["extra"]["digest"] = make_digest(document["results"])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # it may have gone while tests ran
            files.write_whole(self._path, json.dumps(document, indent=1), sync=True)
            self.written = self._path
            if self._remote:
                self._remote.end_run()
                self.written = self._remote.copies / self._path.name
        except OSError as error:  # must not cost the summary too
            self._unwritten = f"the record could not be written: {self._path}: {error.strerror}"
            if journal.path.exists():
                self._unwritten += f"; {journal.path.name} holds what was kept of it"
        except RemoteError as error:
            self._unwritten = (
                f"the record could not be copied: {error}. It is kept in {self._path}, and copied by the next run that "
                "writes there"
            )
        if self._unwritten and session is not None:
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR
        journal.close(keep=not self.written)

    def _now(self) -> int:
        """Return the time in ms since 1970, by a clock that is not set while tests run."""
        return round((self._start + time.monotonic() - self._clock) * 1000)


class Journal:
    """The journal's file. Where a line cannot be written it ends, not the run: ``problem`` says why."""

    def __init__(self, path: Path, head: Record) -> None:
        self.path, self.problem = path, ""
        self._file = -1
        begun = path.with_name(f".{path.name}")
        try:
            self._file = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
            os.register_at_fork(after_in_child=self._release)  # what a test forks may outlive the run
            with contextlib.suppress(OSError):  # a disk that knows no locks
                files.lock(self._file)
            files.append_json(self._file, [msgspec.to_builtins(head)])
            begun.rename(path)  # whoever sees it sees a head and a lock
        except OSError as error:
            self._fail(error)
            with contextlib.suppress(OSError):
                begun.unlink()

    def write(self, lines: Sequence[JournalLine]) -> None:
        """Append lines to the journal."""
        if self.problem or self._file < 0:
            return
        try:
            files.append_json(self._file, map(msgspec.to_builtins, lines))
        except OSError as error:
            self._fail(error)

    def close(self, *, keep: bool) -> None:
        """Close the journal; remove it where the record holds all of it."""
        self._release()
        if not keep:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _fail(self, error: OSError) -> None:
        self.problem = f"{self.path}: {error.strerror}"
