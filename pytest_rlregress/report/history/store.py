"""The history of runs: folders of their records are the database, an index over them is kept beside."""

from __future__ import annotations

import datetime
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_rlregress.records import reader
from pytest_rlregress.report.history import index as indices
from pytest_rlregress.report.history import parsing, record_files
from pytest_rlregress.report.judgement.facts import Evidence, Point, Problem, RecordedRun

_DAY_SECONDS = 86_400


class History:
    """Runs of several platforms, and what came of their tests.

    Attributes:
        runs: Each run once, ascending by start.
        problems: By path: each file that is not among the runs, and remarks on those that are.
        parsed: How many files had to be read; the others were in the index.
    """

    def __init__(
        self, db: sqlite3.Connection, runs: Sequence[tuple[int, RecordedRun]], problems: Sequence[Problem], parsed: int
    ) -> None:
        self._db, self._runs = db, runs
        self._timelines: dict[str, dict[str, list[Point]]] = {}
        self.runs = tuple(run for _, run in runs)
        self.problems = tuple(problems)
        self.parsed = parsed

    @property
    def platforms(self) -> tuple[str, ...]:
        """Hardware profiles, by name."""
        return tuple(sorted({run.platform for run in self.runs}))

    def timelines(self, platform: str) -> dict[str, list[Point]]:
        """A platform's tests by name, each with its results, the oldest first. Not to be changed."""
        if platform not in self._timelines:
            text = indices.texts(self._db)
            found: dict[str, list[Point]] = defaultdict(list)
            with indices.many_objects():
                for number, run in self._runs:
                    if run.platform == platform:
                        for test, result in indices.results(self._db, number, text):
                            found[test].append(Point(run, result))
            self._timelines[platform] = dict(sorted(found.items()))
        return self._timelines[platform]

    def evidence(self, run: RecordedRun, test: str) -> Evidence:
        """What the record of a run holds of a test; says so where the file has gone since the history was opened.

        Raises:
            KeyError: The run had no such test.
        """
        try:
            entry = _entries(run.path, run.path.stat().st_mtime_ns)[test]
        except (OSError, reader.RecordError) as error:
            return Evidence(f"its record can no longer be read: {error}", "")
        return Evidence(
            message=str(entry.get("message", "")),
            trace=str(entry.get("trace", "")),
            attempts=1 + int(entry.get("retries", 0)),
            file=str(entry.get("filePath", "")),
            peak_memory=entry.get("extra", {}).get("peak_memory", {}),
        )


def open_history(sources: Sequence[Path], *, index: Path | None = None, say: indices.Say) -> History:
    """The history in records and journals; only what is new or changed since the index was kept is read.

    Args:
        sources: Folders, searched with those in them that are not hidden, or files.
        index: Where the index is kept; a hidden file in the first folder if None, nowhere if there is no folder.
        say: Is told when reading takes long, and when an index is of no use or cannot be kept: what is returned is the
            same in any case.

    Raises:
        HistoryError: A source is not there.
    """
    found, problems = record_files.find(sources)
    place = index or next((source / indices.NAME for source in sources if os.path.isdir(source)), None)
    db = indices.opened(place, say)
    parsed, changed = indices.update(db, found, say)
    if place is not None and changed:
        indices.keep(db, place, say)
    by_id = defaultdict(list)
    for real, content in indices.contents(db).items():
        if real not in found:
            continue  # another source's
        path = found[real].path
        if content.problem is not None:
            problems.append(Problem(path, content.problem))
        else:
            by_id[content.head["id"]].append(_File(path, content))
    runs = []
    for same in by_id.values():
        counts, *others = sorted(same, key=_precedence)
        runs.append((counts.content.number, parsing.run(counts.path, counts.content.head, counts.content.stack)))
        problems += [Problem(counts.path, remark) for remark in _remarks(counts)]
        problems += [Problem(other.path, _instead(other, counts)) for other in others]
    runs.sort(key=lambda each: (each[1].start, each[1].id))
    return History(db, runs, sorted(problems, key=lambda problem: (str(problem.path), problem.text)), parsed)


@dataclass(frozen=True)
class _File:
    path: Path
    content: indices.Content


def _precedence(file: _File) -> tuple[bool, float, str]:
    """Which file of a run counts: the record rather than the journal, the one that ended last, the first by name."""
    return parsing.is_journal(file.path), -file.content.head["stop"], str(file.path)


def _instead(other: _File, counts: _File) -> str:
    """Why a file of a run does not count."""
    if other.content == counts.content:
        return f"a copy of {counts.path}, which counts"
    if parsing.is_journal(other.path) and not parsing.is_journal(counts.path):
        return f"the journal of the run whose record is {counts.path}, which counts"
    return f"of the same run as {counts.path}, which has other content, ended no earlier and counts"


def _remarks(file: _File) -> list[str]:
    """What is odd about a file that counts."""
    remarks, start = list(file.content.head["remarks"]), file.content.head["start"]
    if start > time.time() + _DAY_SECONDS:
        moment = datetime.datetime.fromtimestamp(start, datetime.UTC)
        remarks.append(
            f"from the future: it began on {moment:%Y-%m-%d %H:%M} UTC, by a clock that is wrong, or this one is"
        )
    return remarks


@lru_cache(maxsize=4)
def _entries(path: Path, mtime_ns: int) -> Mapping[str, Mapping[str, Any]]:
    """The tests of a record, kept for the next question as long as the file is the same."""
    return parsing.worst(reader.read(path)["tests"])
