"""Read records, and find the tests that went from good to bad between two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlregress.records import journal
from pytest_rlregress.records.record_types import FORMAT, Record, RecordedTest
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.verdicts import Rank, rank

_DECODER = msgspec.json.Decoder(Record)


class RecordError(ValueError):
    """A file that cannot be read as a record: the message names it and says why."""


def flipped(good: Path, bad: Path) -> list[tuple[RecordedTest, RecordedTest]]:
    """Find the tests that are in both records and went from good to bad: each before and after, in the later's order.

    Raises:
        RecordError: One of them is none.
    """
    before, after = ({test.name: test for test in read(path).results.tests} for path in (good, bad))
    pairs = ((before[name], test) for name, test in after.items() if name in before)
    return [(old, new) for old, new in pairs if rank(old.word) is Rank.GOOD and rank(new.word) > Rank.GOOD]


def lock(path: Path) -> Lock:
    """Read the lock of a record: what was installed where it was made.

    Raises:
        RecordError: It is none.
        LockError: What it names is no complete set of packages.
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
        if journal.is_journal(path):
            lines, state = journal.read(path)
            lines = _printable(lines)
            record = journal.assembled(lines, state) if lines else None
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
