"""Find what the last recorded run had installed that is not installed any more."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pytest_rlregress.records.reader import RecordError, read
from pytest_rlregress.stack import COMPONENTS


def gone(folder: Path, profile: str | None, installed: Collection[str]) -> str:
    """Say which components the newest record of a folder had that are gone, and when that was; "" where none is.

    Args:
        folder: Where records are written; it need not exist. A file in it that is damaged is passed over.
        profile: Of the run: records of other hardware tell nothing about this machine.
        installed: The components that are installed now.
    """
    for path in sorted(folder.glob(f"*-{profile or 'unknown'}-*.json"), key=_written, reverse=True):
        try:
            record = read(path)
        except RecordError:
            continue
        before = record.results.extra
        if before.hardware.profile != profile:
            continue
        versions = before.stack.versions
        lost = [f"{name} {versions[name]}" for name in versions if name in COMPONENTS and name not in installed]
        date = record.timestamp.partition("T")[0]
        return f"GONE since the last recorded run ({date}): {', '.join(lost)}" if lost else ""
    return ""


def _written(path: Path) -> tuple[str, int]:
    """The time in a record's name, to the second, and of two records of one second when the file was written."""
    with suppress(FileNotFoundError):  # removed by another job
        return path.name.partition("-")[0], path.lstat().st_mtime_ns
    return "", 0
