"""The journal of a request: a line for every finished trial, on disk before the next one starts.

The first line says what was asked, so that a journal never answers another request; each later line is a trial. JSON,
one object a line, appended only. What was killed in the middle of a line loses that line and no more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_rlregress.trials.observations import Trial
from pytest_rlregress.util import files

#: The form of the file: raised when a line written by an older release can no longer be read.
FORMAT = 4

_BEGIN = b'{"journal": '


class JournalError(ValueError):
    """A journal that cannot be continued: the message names the file, and what to do."""


class TrialJournal:
    """The finished trials of one request.

    Attributes:
        path: The file.
        trials: The trials, by their label, in the order of the trying.
    """

    def __init__(self, path: Path, file: int) -> None:
        self.path, self._file = path, file
        self.trials: dict[str, Trial] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, request: Mapping[str, Any], *, fresh: bool = False) -> Generator[TrialJournal]:
        """Go on with the journal at ``path``, or begin it: this process has it alone as long as the context lasts.

        Args:
            path: The file; missing folders are made.
            request: All that makes a trial mean something else where it differs: what JSON can hold.
            fresh: Forget the trials that the file holds.

        Raises:
            JournalError: Another process has it, it cannot be written, it holds the trials of another request, is of
                another format, is damaged elsewhere than at its end, or is no journal at all.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise JournalError(f"{path}: the journal cannot be opened: {error.strerror}") from None
        try:
            journal = cls(path, file)
            journal._begin({"journal": FORMAT, "request": request}, fresh)
            yield journal
        finally:
            os.close(file)

    def add(self, trial: Trial) -> None:
        """Keep a finished trial: it is on disk when this returns.

        Raises:
            JournalError: It could not be written (a full disk); the lines before it are as they were.
        """
        self._append(trial)
        self.trials[trial.label] = trial

    def _begin(self, question: Mapping[str, Any], fresh: bool) -> None:
        try:
            locked = files.lock(self._file)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be locked: {error.strerror}; keep it on a local disk.") from None
        if not locked:
            raise JournalError(f"{self.path}: the same command is already running; wait for its end or stop it.")
        head = files.json_line(question)
        with open(self._file, "rb", closefd=False) as file:
            content = file.read()
        if not (content.startswith(_BEGIN) or _BEGIN.startswith(content)):
            raise JournalError(f"{self.path}: is no journal of trials; name another file, or remove it.")
        whole = 0
        if not fresh and not (len(content) < len(head) and head.startswith(content)):  # new, or killed while begun
            self.trials, whole = _read(self.path, content, head)
        os.ftruncate(self._file, whole)
        if not whole:
            self._append(question)

    def _append(self, value: object) -> None:
        try:
            new = not os.fstat(self._file).st_size
            files.append_json(self._file, [value], sync=True)
            if new:
                files.sync_folder(self.path.parent)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written: {error.strerror}; what it held is kept.") from None


def _read(path: Path, content: bytes, head: bytes) -> tuple[dict[str, Trial], int]:
    """The trials of a journal, and how many of its bytes are whole lines."""
    first, *lines, torn = content.split(b"\n") if b"\n" in content else (content, b"")
    _check_head(path, first, head)
    trials: dict[str, Trial] = {}
    for number, line in enumerate(lines, 2):
        try:
            trial = Trial.from_json(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            last = number == len(lines) + 1 and not torn
            if last and isinstance(error, ValueError):
                return trials, len(content) - len(line) - 1  # a machine that died may leave the line's end without it
            raise JournalError(f"{path}: line {number} is damaged; repair it, or start over with --fresh.") from None
        trials[trial.label] = trial
    return trials, len(content) - len(torn)


def _check_head(path: Path, first: bytes, head: bytes) -> None:
    """Check that the first line of a journal is of this request."""
    asked = json.loads(head)["request"]
    try:
        found = json.loads(first)
        form = int(found["journal"])
        request = dict(found["request"]) if form == FORMAT else {}
    except (ValueError, KeyError, TypeError):
        raise JournalError(f"{path}: line 1 is damaged; start over with --fresh.") from None
    if form != FORMAT:
        raise JournalError(f"{path}: is of format {form}, this release reads {FORMAT}; start over with --fresh.")
    if request != asked:
        other = ", ".join(sorted(key for key in {*request, *asked} if request.get(key) != asked.get(key)))
        raise JournalError(
            f"{path}: is about another request (differing in {other}); name another file, or start over with --fresh."
        )
