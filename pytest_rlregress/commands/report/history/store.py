"""The history of runs: the records and journals in folders, read again each time."""

from __future__ import annotations

import contextlib
import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from pytest_rlregress.commands.report.history import parsing, record_files
from pytest_rlregress.commands.report.history.parsing import ParsedFile
from pytest_rlregress.commands.report.judgement.facts import Point, Problem, RecordedRun
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import RecordedTest


class History:
    """Runs of several platforms, and what came of their tests.

    Attributes:
        runs: Each run once, ascending by start.
        problems: By path: each file that is not among the runs, and remarks on those that are.
    """

    def __init__(self, files: Sequence[ParsedFile], problems: Sequence[Problem]) -> None:
        self._files = files
        self._timelines: dict[str, dict[str, list[Point]]] = {}
        self.runs = tuple(file.run for file in files)
        self.problems = tuple(problems)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Hardware profiles, by name."""
        return tuple(sorted({run.platform for run in self.runs}))

    def timelines(self, platform: str) -> dict[str, list[Point]]:
        """Return a platform's tests by name, each with its results, the oldest first. Not to be changed."""
        if platform not in self._timelines:
            found: dict[str, list[Point]] = defaultdict(list)
            with _many_objects():
                for file in self._files:
                    if file.run.platform == platform:
                        for test, point in file.points.items():
                            found[test].append(point)
            self._timelines[platform] = dict(sorted(found.items()))
        return self._timelines[platform]

    def entry(self, run: RecordedRun, test: str) -> RecordedTest:
        """Read a test's entry in the record of a run; says so where that has gone since the history was opened."""
        try:
            return _entries(run.path, run.path.stat().st_mtime_ns)[test]
        except KeyError:
            why = "its record no longer has this test"
        except (OSError, reader.RecordError) as error:
            why = f"its record can no longer be read: {error}"
        return RecordedTest(test, "other", "interrupted", 0, "", message=why)


def open_history(sources: Sequence[Path]) -> History:
    """Return the history in records and journals.

    Args:
        sources: Folders, searched with those in them that are not hidden, or files.

    Raises:
        RecordError: A source is not there.
    """
    paths, problems = record_files.find(sources)
    by_id = defaultdict(list)
    with _many_objects():
        for path in paths:
            try:
                file = parsing.parse(path)
            except reader.RecordError as error:
                problems.append(Problem(path, str(error).removeprefix(f"{path}: ")))
            else:
                by_id[file.run.id].append(file)
    files = []
    for same in by_id.values():
        # The record rather than the journal, the one that ended last, the first by name.
        counts, *others = sorted(
            same, key=lambda file: (reader.is_journal(file.run.path), -file.stop, str(file.run.path))
        )
        files.append(counts)
        if counts.remark:
            problems.append(Problem(counts.run.path, counts.remark))
        problems += [Problem(other.run.path, f"of the same run as {counts.run.path}, which counts") for other in others]
    files.sort(key=lambda file: (file.run.start, file.run.id))
    return History(files, sorted(problems, key=lambda problem: (str(problem.path), problem.text)))


@contextlib.contextmanager
def _many_objects() -> Iterator[None]:
    """Switch garbage collection off: going through many objects that are all in use takes longer than making them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@lru_cache(maxsize=4)
def _entries(path: Path, mtime_ns: int) -> Mapping[str, RecordedTest]:
    """Return the tests of a record, the worst of those with the same name, kept as long as the file is the same."""
    return parsing.worst_by_name(reader.read(path).results.tests)
