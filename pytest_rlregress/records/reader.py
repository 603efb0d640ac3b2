"""Read records and journals, find the last one of a folder, and the tests that went from good to bad between two."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.answer import with_tests
from pytest_rlregress.records.record_types import FORMAT, JournalLine, Record, RecordedTest, State
from pytest_rlregress.stack import COMPONENTS, locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util import files

#: How a journal's name ends; before that it is the name that the record is going to have.
JOURNAL = ".partial.jsonl"
_DECODER = msgspec.json.Decoder(Record)


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
    lines: list[Any] = []
    try:
        if is_journal(path):
            lines, state = _read_lines(path)
            record = _assemble(lines, state) if lines else None
        else:
            content = path.read_bytes()
            try:
                record = _DECODER.decode(content)
            except (msgspec.DecodeError, RecursionError):  # Python reads more: halves of characters, a mark of UTF-8
                lines = [_printable(json.loads(content))] if content.strip() else []
                record = msgspec.convert(lines[0], Record) if lines else None
    except IsADirectoryError:
        raise RecordError(f"{path}: a folder, not a record: name a file in it") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {_why_none(lines[0]) or f'damaged: {error}'}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: no complete JSON, so no record, or one that was cut off: {error}") from None
    if record is None:
        raise RecordError(f"{path}: empty, so no record")
    if record.results.extra.format > FORMAT:
        raise RecordError(f"{path}: {_newer(record.results.extra.format)}")
    if not record.results.extra.stack.requirements:
        raise RecordError(f"{path}: does not say what was installed: results.extra.stack.requirements is empty")
    return record


def _read_lines(path: Path) -> tuple[list[Any], State]:
    """Read a journal's lines, and whether its run still goes on, on this machine, or was killed.

    Raises:
        OSError: It cannot be read.
        ValueError: A line is damaged. The last may be cut off: it is left out.
    """
    with open(path, "rb") as file:
        running = False
        with contextlib.suppress(OSError):  # a disk that knows no locks
            running = not files.lock(file.fileno(), shared=True)
        return [_printable(line) for line in files.json_lines(file.read())], "running" if running else "killed"


def _assemble(lines: list[Any], state: State) -> Record:
    """Build the record of a run that has left only its journal."""
    head, known = msgspec.convert(lines[0], Record), msgspec.convert(lines[1:], list[JournalLine])
    tests = {line.nodeid: line.test for line in known}
    return with_tests(head, tests.values(), state, known[-1].at if known else head.results.summary.stop)


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


def _printable(value: Any) -> Any:
    """Write out in a JSON value the halves of characters that a test may have printed."""
    if isinstance(value, dict):
        return {_printable(key): _printable(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(_printable, value))
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _why_none(record: Any) -> str:
    """Say why what is damaged may never have been a record known here; "" for one that was."""
    try:
        form = record["results"]["extra"]["format"]
        return _newer(form) if form > FORMAT else ""
    except (KeyError, TypeError):
        other = isinstance(record, dict) and record.get("reportFormat") == "CTRF"
        but = " but another tool's test report" if other else ""
        return f"no record of a run with pytest-rlregress{but}: pytest --hw=PROFILE --rl-record-dir=DIR writes one"


def _newer(form: int) -> str:
    return f"format {form}, known here up to {FORMAT}: pip install -U pytest-rlregress"
