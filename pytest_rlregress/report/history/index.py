"""The index over the files of a history: an sqlite database with a row for each file and one for each result in it.

It can be rebuilt from the files at any time. It is worked on in memory; the file beside the records is a sealed copy
that is only ever replaced as a whole. So two processes cannot get in each other's way, a network disk needs no locks,
and one that was damaged, by whatever it was, is known by its seal.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from pytest_rlregress.records import reader
from pytest_rlregress.report.history.parsing import Parsed, digest, is_journal, parse, printable
from pytest_rlregress.report.judgement.facts import Result
from pytest_rlregress.util.files import replacing

Say = Callable[[str], None]
Texts: TypeAlias = Mapping[Any, Any]  # by number, 0 for None

#: Its name in a folder of records.
NAME = ".rlregress-index.sqlite"
#: To be raised with whatever else changes what is kept of a file.
_SCHEMA = 1
_TABLES = """
CREATE TABLE text (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE file (path BLOB PRIMARY KEY, mtime_ns INTEGER, size INTEGER, content INTEGER) WITHOUT ROWID;
CREATE TABLE content (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, problem TEXT, head TEXT, stack INTEGER);
CREATE TABLE result (
    content INTEGER, test INTEGER, word INTEGER, seconds REAL, failure INTEGER, side INTEGER, note INTEGER,
    flaky INTEGER, PRIMARY KEY (content, test)
) WITHOUT ROWID;
"""
#: So many files are worth a word before they are read.
_MANY = 50
#: The stamp of a file that is to be read again, whether it changes or not.
_AGAIN = (-1, -1)


@contextlib.contextmanager
def many_objects() -> Iterator[None]:
    """No garbage collection meanwhile.

    To go through hundreds of thousands of objects again and again, only to find that all are in use, takes longer than
    to make them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class IndexedFile:
    """A file as it was found: the name to call it by, and what changes when it does."""

    path: Path
    mtime_ns: int
    size: int


@dataclass(frozen=True)
class Content:
    """What is kept of a file and its copies: why it is no record, or its head, stack and, by number, its results."""

    number: int
    problem: str | None
    head: Mapping[str, Any]
    stack: Mapping[str, Any]


def opened(place: Path | None, say: Say) -> sqlite3.Connection:
    """The index that is kept at a place; an empty one where there is none, or where it is of no use, which is said."""
    db = sqlite3.connect(":memory:")
    if place is not None and os.path.lexists(place):
        problem = _load(place, db)
        if not problem:
            return db
        say(f"{place}: {problem}: the index is built anew")
    db.close()
    db = sqlite3.connect(":memory:")
    db.executescript(_TABLES)
    return db


def keep(db: sqlite3.Connection, place: Path, say: Say) -> None:
    """Put a copy of it at a place; where that does not work it is said, and the next one reads every file again."""
    try:
        db.execute(f"PRAGMA user_version = {_version()}")
        with replacing(place) as partial:
            with contextlib.closing(sqlite3.connect(partial)) as copy:
                copy.execute("PRAGMA journal_mode = OFF")
                db.backup(copy)
            with open(partial, "r+b") as file:
                seal = hashlib.sha256(file.read()).digest()
                file.write(seal)  # sqlite knows its size and reads no further
    except (OSError, sqlite3.Error) as error:
        say(f"{place}: the index could not be kept there: {error}")


def update(db: sqlite3.Connection, files: Mapping[str, IndexedFile], say: Say) -> tuple[int, bool]:
    """Read what is new or changed, and drop what is no longer there.

    Args:
        db: The index.
        files: By real path.
        say: Is told when many are to be read.

    Returns:
        How many files were parsed, and whether anything is other than before. A file that was moved, copied or touched
        is read, to know it by its content, but not parsed.
    """
    known = {os.fsdecode(path): stamp for path, *stamp in db.execute("SELECT path, mtime_ns, size FROM file")}
    fresh = [real for real, file in files.items() if known.get(real) != [file.mtime_ns, file.size]]
    gone = [real for real in known if real not in files and not os.path.lexists(real)]
    if len(fresh) >= _MANY:
        say(f"reading {len(fresh)} new records …")
    with db, many_objects():
        numbers = _Numbers(db)
        parsed = sum(_add(db, real, files[real], numbers) for real in fresh)
        db.executemany("DELETE FROM file WHERE path = ?", [(os.fsencode(real),) for real in gone])
        db.execute("DELETE FROM content WHERE id NOT IN (SELECT content FROM file)")
        db.execute("DELETE FROM result WHERE content NOT IN (SELECT id FROM content)")
    return parsed, bool(fresh or gone)


def contents(db: sqlite3.Connection) -> dict[str, Content]:
    """What is kept of the files, by real path."""
    stacks = {
        number: json.loads(text)
        for number, text in db.execute("SELECT id, text FROM text WHERE id IN (SELECT stack FROM content)")
    }
    found = {
        number: Content(number, problem, json.loads(head or "{}"), stacks.get(stack, {}))
        for number, problem, head, stack in db.execute("SELECT id, problem, head, stack FROM content")
    }
    return {os.fsdecode(path): found[number] for path, number in db.execute("SELECT path, content FROM file")}


def texts(db: sqlite3.Connection) -> Texts:
    """The texts that rows refer to by number."""
    return {0: None, **dict(db.execute("SELECT id, text FROM text"))}


def results(db: sqlite3.Connection, number: int, text: Texts) -> Iterator[tuple[str, Result]]:
    """What came of the tests in the content of this number, by test."""
    for test, word, seconds, failure, side, note, flaky in db.execute(
        "SELECT test, word, seconds, failure, side, note, flaky FROM result WHERE content = ?", (number,)
    ):
        yield text[test], Result(text[word], seconds, text[failure], text[side], text[note], bool(flaky))


def _version() -> int:
    """One number for everything that decides what is kept of a file."""
    parts = f"{_SCHEMA} {_TABLES} {reader.FORMAT} {metadata.version('pytest-rlregress')}"
    return zlib.crc32(parts.encode()) & 0x7FFFFFFF


def _load(place: Path, db: sqlite3.Connection) -> str:
    """Copy what is kept at a place into memory; "" or why that is no use."""
    try:
        kept = place.read_bytes()
        if hashlib.sha256(kept[:-32]).digest() != kept[-32:]:
            return "damaged, or no index"
        del kept
        with contextlib.closing(sqlite3.connect(f"{place.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as copy:
            if copy.execute("PRAGMA user_version").fetchone() != (_version(),):
                return "of another version"
            copy.backup(db)
    except (OSError, sqlite3.Error) as error:
        return f"cannot be read: {error}"
    return ""


class _Numbers(dict[Any, int]):
    """The numbers of texts; one that is asked for first is added to the index."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__({None: 0, **{text: number for number, text in db.execute("SELECT id, text FROM text")}})
        self._db = db

    def __missing__(self, text: str) -> int:
        clean = printable(text)
        if clean != text:
            return self[clean]
        self[text] = int(self._db.execute("INSERT INTO text (text) VALUES (?)", (text,)).lastrowid or 0)
        return self[text]


def _add(db: sqlite3.Connection, real: str, file: IndexedFile, numbers: _Numbers) -> int:
    """Note what a file is now; 1 if it had to be parsed for that."""
    stamp: tuple[int, int] = (file.mtime_ns, file.size)
    parsed = 0
    try:
        key = digest(file.path)
        known = db.execute("SELECT id FROM content WHERE key = ?", (key,)).fetchone()
        if not known or is_journal(file.path):  # whether its run goes on is not said by what is in it
            parsed = 1
            found = parse(file.path)
            if found.head["state"] == "running":
                stamp, key = _AGAIN, f"{key} running"
            _keep_record(db, key, found, numbers)
    except OSError as error:  # nor is who may read it
        stamp, key = _AGAIN, f"cannot be read: {error.strerror}"
        _keep_problem(db, key, key)
    except reader.RecordError as error:
        _keep_problem(db, key, printable(str(error).removeprefix(f"{file.path}: ")))
    db.execute(
        "INSERT OR REPLACE INTO file SELECT ?, ?, ?, id FROM content WHERE key = ?", (os.fsencode(real), *stamp, key)
    )
    return parsed


def _keep_problem(db: sqlite3.Connection, key: str, problem: str) -> None:
    db.execute("INSERT OR IGNORE INTO content (key, problem) VALUES (?, ?)", (key, problem))


def _keep_record(db: sqlite3.Connection, key: str, found: Parsed, numbers: _Numbers) -> None:
    added = db.execute(
        "INSERT OR IGNORE INTO content (key, head, stack) VALUES (?, ?, ?)",
        (key, json.dumps(found.head), numbers[json.dumps(found.stack)]),
    )
    if added.rowcount:
        rows = [
            (added.lastrowid, numbers[test], numbers[word], seconds, *(numbers[text] for text in texts), flaky)
            for test, word, seconds, *texts, flaky in found.results
        ]
        db.executemany("INSERT INTO result VALUES (?, ?, ?, ?, ?, ?, ?, ?)", sorted(rows))
