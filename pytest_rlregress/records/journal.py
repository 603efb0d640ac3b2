"""The journal: what is known of a run while it goes on, in a file, so that a killed run leaves it.

The file holds one JSON object a line: first the record as it would be without any test, then what became known of a
test, each time anew; the last line about a test counts. A line is handed to the operating system at once, so that a
killed pytest loses at most the one that it was writing. It is not synced to the disk, which may take longer there than
a test does: a machine that goes down can cost the last seconds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlregress.records.record_types import JournalLine, Record, State, with_tests
from pytest_rlregress.util import files

#: How the file's name ends; before that it is the name that the record is going to have.
SUFFIX = ".partial.jsonl"


def is_journal(path: Path) -> bool:
    """Whether a file's name says that it is the journal of a run that has not ended, or was killed."""
    return path.name.endswith(SUFFIX)


class RunJournal:
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


def read(path: Path) -> tuple[list[Any], State]:
    """Read a journal's lines, and whether its run still goes on, on this machine, or was killed.

    Raises:
        OSError: It cannot be read.
        ValueError: A line is damaged. The last may be cut off: it is left out.
    """
    with open(path, "rb") as file:
        running = False
        with contextlib.suppress(OSError):  # a disk that knows no locks
            running = not files.lock(file.fileno(), shared=True)
        return list(files.json_lines(file.read())), "running" if running else "killed"


def assembled(lines: Sequence[Any], state: State) -> Record:
    """Build the record of a run of which only the journal is left.

    Raises:
        msgspec.ValidationError: It is no journal.
    """
    head, known = msgspec.convert(lines[0], Record), msgspec.convert(lines[1:], list[JournalLine])
    tests = {line.nodeid: line.test for line in known}
    return with_tests(head, tests.values(), state, known[-1].at if known else head.results.summary.stop)
