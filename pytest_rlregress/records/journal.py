"""The journal: what is known of a run while it goes on, in a file, so that a killed run leaves it.

The file holds one JSON object a line: first the record as it would be without any test, then what became known of a
test, each time anew; the last line about a test counts. A line is handed to the operating system at once, so that a
killed pytest loses at most the one that it was writing. It is not synced to the disk, which may take longer there than
a test does: a machine that goes down can cost the last seconds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_rlregress.records import ctrf
from pytest_rlregress.util import files

#: How the file's name ends; before that it is the name that the record is going to have.
SUFFIX = ".partial.jsonl"

Line = Mapping[str, Any]


class RunState:
    """A run as far as it is known; builds the record.

    Args:
        head: The record as it would be without any test.
    """

    def __init__(self, head: Mapping[str, Any]) -> None:
        self.head = head
        self._stop: int = head["results"]["summary"]["stop"]
        self._tests: dict[str, Mapping[str, Any]] = {}
        self._libraries: dict[str, list[Any]] = {}

    def hear(self, line: Line) -> None:
        """Add what a line of the journal says.

        Args:
            line: ``at``, in ms since 1970; ``nodeid`` and ``test``, its entry in the record; ``libraries``, the native
                ones that had not been seen before.
        """
        self._stop = line["at"]
        self._tests[line["nodeid"]] = line["test"]
        for family, new in line.get("libraries", {}).items():
            known = self._libraries.setdefault(family, [])
            known += [file for file in new if file not in known]

    @property
    def unfinished(self) -> bool:
        """Whether a test is without result."""
        return any(test["rawStatus"] in ("pending", "interrupted") for test in self._tests.values())

    def record(self, state: str, stop: int | None = None) -> dict[str, Any]:
        """Build the record of a run that ended at ``stop`` (ms since 1970; None: with the last line)."""
        extra = self.head["results"]["extra"]
        extra = {
            **extra,
            "state": state,
            "interrupted": state != "complete",
            "stack": {**extra["stack"], "libraries": self._libraries},
        }
        stop = self._stop if stop is None else stop
        return ctrf.ended(self.head, list(self._tests.values()), stop=stop, extra=extra)


class RunJournal:
    """The journal's file. Where a line cannot be written it ends, not the run: ``problem`` says why."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path, self.problem = path, ""
        self._file = -1
        begun = path.with_name(f".{path.name}")
        try:
            self._file = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
            os.register_at_fork(after_in_child=self._release)  # what a test forks may outlive the run
            with contextlib.suppress(OSError):  # a disk that knows no locks
                files.lock(self._file)
            files.append_json(self._file, [head])
            begun.rename(path)  # whoever sees it sees a head and a lock
        except OSError as error:
            self._fail(error)
            with contextlib.suppress(OSError):
                begun.unlink()

    def write(self, lines: Sequence[Line]) -> None:
        """Append lines to the journal."""
        if self.problem or self._file < 0:
            return
        try:
            files.append_json(self._file, lines)
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


def read(path: Path) -> tuple[list[Any], bool]:
    """Read a journal's lines, and whether its run still goes on, on this machine.

    Raises:
        OSError: It cannot be read.
        ValueError: A line is damaged. The last may be cut off: it is left out.
    """
    with open(path, "rb") as file:
        running = False
        with contextlib.suppress(OSError):  # a disk that knows no locks
            running = not files.lock(file.fileno(), shared=True)
        return list(files.json_lines(file.read())), running


def assembled(lines: Sequence[Any], state: str) -> dict[str, Any]:
    """Build the record of a run of which only the journal is left.

    Raises:
        KeyError, TypeError, AttributeError: It is no journal.
    """
    run = RunState(lines[0])
    for line in lines[1:]:
        run.hear(line)
    return run.record(state)
