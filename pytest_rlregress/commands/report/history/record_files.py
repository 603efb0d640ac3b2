"""The files of a history: records and journals in folders, each once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_rlregress.commands.report.judgement.facts import Problem
from pytest_rlregress.records.reader import JOURNAL, RecordError


def find(sources: Sequence[Path]) -> tuple[list[Path], list[Problem]]:
    """Return every record and journal, once however many links lead to it, and the files that aren't records.

    Folders are searched with the folders in them, but not what is hidden; there a file is asked for by how its name
    ends, ``.json`` or ``.partial.jsonl``. A file that is named itself is taken as it is.

    Raises:
        RecordError: A source is not there.
    """
    found: dict[str, Path] = {}
    problems: list[Problem] = []
    for source in sources:
        if not os.path.lexists(source):
            raise RecordError(f"{source}: there is no such file or folder. Allowed: records, and folders of records.")
        paths = list(_walk(source, problems, set())) if os.path.isdir(source) else [source]
        if not paths:
            problems.append(Problem(source, "no record in it. pytest --hw=PROFILE --rl-record-dir=DIR writes one"))
        for path in paths:
            try:
                real, status = os.path.realpath(path), path.stat()
            except OSError as error:
                problems.append(Problem(path, f"cannot be read: {error.strerror}"))
                continue
            if stat.S_ISREG(status.st_mode):
                found.setdefault(real, path)
            else:  # to read a pipe could take for ever
                problems.append(Problem(path, "no file, but a pipe, a socket or a device"))
    return list(found.values()), problems


def _walk(folder: Path, problems: list[Problem], seen: set[str]) -> Iterator[Path]:
    """Yield the files in a folder, and in those below it; a link to a folder is followed, once."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        problems.append(Problem(folder, f"cannot be read: {error.strerror}"))
        return
    for path in (folder / name for name in names):
        if os.path.isdir(path):  # Path.is_dir fails where nothing can be known of it
            yield from _walk(path, problems, seen)
        elif path.name.endswith((".json", JOURNAL)):
            yield path
