"""Read records and journals, find the last one of a folder, and the tests that went from good to bad between two."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.answer import with_tests
from pytest_rlregress.records.record_types import FORMAT, JournalLine, Record, RecordedTest
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util import files

#: How a journal's name ends; before that it is the name that the record is going to have.
JOURNAL = ".partial.jsonl"
#: The file beside records that says whose numbers are trusted, ``records.trust``.
TRUST = "trust.txt"
_T = TypeVar("_T")
# Days before and after such a time are days too.
_EARLIEST, _LATEST = 0, 250_000_000_000_000  # ms since 1970: in the year 9892


def is_journal(path: Path) -> bool:
    """Return whether a file's name is that of the journal of a run that has not ended, or was killed."""
    return path.name.endswith(JOURNAL)


class RecordError(ValueError):
    """A file that cannot be read as a record: the message names it and says why."""


def flipped(good: Path, bad: Path) -> list[tuple[RecordedTest, RecordedTest]]:
    """Find the tests that are in both records and went from good to bad: each before and after, in the later's order.

    Raises:
        RecordError: One of the files isn't a record.
    """
    before, after = ({test.name: test for test in read(path).results.tests} for path in (good, bad))
    pairs = ((before[name], test) for name, test in after.items() if name in before)
    return [(old, new) for old, new in pairs if rank(old.word) is Rank.GOOD and rank(new.word) > Rank.GOOD]


def lock(path: Path) -> Lock:
    """Read the lock of a record: what was installed where it was made.

    Raises:
        RecordError: The file isn't a record.
        LockError: What it names isn't a complete set of packages.
    """
    return locks.of_lines(enumerate(read(path).results.extra.stack.requirements, 1), str(path), path.parent)


def read(path: Path) -> Record:
    """Read a record, or build it from the journal of a run that was killed or still goes on.

    Raises:
        RecordError: The file cannot be read, is empty, cut off, damaged, of something else or of a newer format, or
            does not say what was installed.
    """
    try:
        running = is_journal(path) and _is_held(path)  # before its content is read
        content = files.read_regular(path)
    except IsADirectoryError:
        raise RecordError(f"{path}: a folder, not a record: name a file in it") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    if is_journal(path):
        content = content[: content.rfind(b"\n") + 1]  # a last line that lacks its end was cut off
    if not content.strip():
        raise RecordError(f"{path}: empty, so no record")
    try:
        record = _assemble(content, running) if is_journal(path) else _decode(content, Record)
    except msgspec.ValidationError as error:
        why = _why_none(content.partition(b"\n")[0] if is_journal(path) else content)
        raise RecordError(f"{path}: {why or f'damaged: {error}'}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RecordError(f"{path}: no complete JSON, so no record, or one that was cut off: {error}") from None
    if record.results.extra.format > FORMAT:
        raise RecordError(f"{path}: {_newer(record.results.extra.format)}")
    start = record.results.summary.start
    if not _EARLIEST <= start <= _LATEST:
        told = start if abs(start) < 10**20 else "a number of more than 20 digits"
        raise RecordError(f"{path}: does not say when its run began: {told} isn't a time")
    if not record.results.extra.stack.requirements:
        raise RecordError(f"{path}: does not say what was installed: results.extra.stack.requirements is empty")
    return record


def _decode(content: bytes, kind: type[_T]) -> _T:
    """Decode a record, or a line of a journal."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # Python reads more: halves of characters, which tests may print
        whole = json.dumps(json.loads(content), ensure_ascii=False).encode(errors="replace")
        return msgspec.json.decode(whole, type=kind)


def _is_held(journal: Path) -> bool:
    """Return whether the run of a journal still goes on, on this machine."""
    with open(files.open_regular(journal), "rb") as file, contextlib.suppress(OSError):  # a disk that knows no locks
        return not files.lock(file.fileno(), shared=True)
    return False


def _assemble(journal: bytes, running: bool) -> Record:
    """Build the record of a run that has left only its journal."""
    first, *lines = journal.removesuffix(b"\n").split(b"\n")
    head, known = _decode(first, Record), [_decode(line, JournalLine) for line in lines]
    tests = {line.nodeid: line.test for line in known}
    stop = known[-1].at if known else head.results.summary.stop
    return with_tests(head, tests.values(), "running" if running else "killed", stop)


def find_last(folder: Path, profile: str | None) -> Iterator[tuple[Path, Record]]:
    """Find the records of a folder that are of one hardware profile, the newest first.

    Args:
        folder: It need not exist. A file in it that is damaged is passed over.
        profile: Records of other hardware tell nothing about this machine.
    """
    for path in sorted(folder.glob(f"*-{profile or 'unknown'}-*.json"), key=_written, reverse=True):
        with contextlib.suppress(RecordError):
            record = read(path)
            if record.results.extra.hardware.profile == profile:
                yield path, record


def _written(path: Path) -> tuple[str, int]:
    """Return the time in a record's name, to the second, and of two records of one second when the file was written."""
    with contextlib.suppress(FileNotFoundError):  # removed by another job
        return path.name.partition("-")[0], path.lstat().st_mtime_ns
    return "", 0


def list_gone(last: Record, installed: Collection[str]) -> str:
    """Say which components a record's run had that are not installed now, and when that was; "" where none is gone."""
    versions = last.results.extra.stack.versions
    lost = [f"{name} {versions[name]}" for name in versions if name in COMPONENTS and name not in installed]
    date = last.timestamp.partition("T")[0]
    return f"GONE since the last recorded run ({date}): {', '.join(lost)}" if lost else ""


def _why_none(content: bytes) -> str:
    """Say why what is damaged may never have been a record known here; "" for one that was."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return "no complete JSON, so no record, or one that was cut off"
    try:
        form = record["results"]["extra"]["format"]
        return _newer(form) if form > FORMAT else ""
    except (KeyError, TypeError):
        other = isinstance(record, dict) and record.get("reportFormat") == "CTRF"
        but = " but another tool's test report" if other else ""
        return f"no record of a run with pytest-rlregress{but}: pytest --hw=PROFILE --rl-record-dir=DIR writes one"


def _newer(form: int) -> str:
    return f"format {form}, known here up to {FORMAT}: pip install -U pytest-rlregress"
