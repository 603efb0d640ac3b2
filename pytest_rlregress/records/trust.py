"""Which records' numbers are trusted by hand: a small file beside the records, a line for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_rlregress.records.history import RecordedRun
from pytest_rlregress.records.reader import TRUST, RecordError
from pytest_rlregress.util.files import write_whole

#: A line of the file: ``untrusted 20261120T020022Z-h100-126f6d.json``.
_WORDS = {"trusted": True, "untrusted": False}


def read_trust(runs: Iterable[RecordedRun]) -> dict[str, bool]:
    """Return by id of a run whether it is trusted, for those decided by hand.

    Raises:
        RecordError: A file beside the records has a line that isn't allowed.
    """
    files: dict[Path, dict[str, bool]] = {}
    found = {}
    for run in runs:
        folder = run.path.parent
        if folder not in files:
            files[folder] = _read(folder / TRUST)
        if run.path.name in files[folder]:
            found[run.id] = files[folder][run.path.name]
    return found


def _read(path: Path) -> dict[str, bool]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        word, _, name = line.partition(" ")
        if word not in _WORDS or not name:
            raise RecordError(f"{path}, line {number}: {line[:80]!r}. Allowed: trusted RECORD or untrusted RECORD")
        found[name] = _WORDS[word]
    return found


def decide(runs: Sequence[RecordedRun], record: str, is_trusted: bool) -> Path:
    """Write down that a record is trusted, or isn't; returns the file.

    Args:
        runs: Among which it is.
        record: Its path, or its file's name.

    Raises:
        RecordError: It isn't among the runs, or the file beside it has a line that isn't allowed.
        OSError: The file can't be written.
    """
    found = [run for run in runs if run.path == Path(record) or run.path.name == record]
    found = found or [run for run in runs if run.path.resolve() == Path(record).resolve()]
    if len(found) != 1:
        which = (
            "several records of this name: write the path" if found else "not one of the records that are reported on"
        )
        raise RecordError(f"{record}: {which}")
    path = found[0].path.parent / TRUST
    words = {**_read(path), found[0].path.name: is_trusted}
    named = {value: word for word, value in _WORDS.items()}
    write_whole(path, "".join(f"{named[value]} {name}\n" for name, value in sorted(words.items())))
    return path
