"""The history of runs: find records and journals, read them, put each test's results in a row."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from sys import intern

from packaging.utils import canonicalize_name

from pytest_rlregress.commands.report.facts import Point, Problem, RecordedRun
from pytest_rlregress.failures.verdicts import rank
from pytest_rlregress.goldens import step_numbers
from pytest_rlregress.records.reader import JOURNAL, RecordError, is_journal, read
from pytest_rlregress.records.record_types import RecordedTest
from pytest_rlregress.stack.locks import Lock

#: A note is one line; the whole text stays in the record.
NOTE_CHARACTERS = 300


class History:
    """Runs of several platforms, and what came of their tests.

    Attributes:
        runs: Each run once, ascending by start.
        problems: By path: each file that is not among the runs.
    """

    def __init__(self, results: Iterable[tuple[RecordedRun, Mapping[str, Point]]], problems: list[Problem]) -> None:
        self._results = sorted(results, key=lambda pair: (pair[0].start, pair[0].id))
        self._timelines: dict[str, dict[str, list[Point]]] = {}
        self.runs = tuple(run for run, _ in self._results)
        self.problems = tuple(sorted(problems, key=lambda problem: (str(problem.path), problem.text)))

    @property
    def platforms(self) -> tuple[str, ...]:
        """Hardware profiles, by name."""
        return tuple(sorted({run.platform for run in self.runs}))

    def timelines(self, platform: str) -> dict[str, list[Point]]:
        """Return a platform's tests by name, each with its results, the oldest first. Not to be changed."""
        if platform not in self._timelines:
            found: dict[str, list[Point]] = defaultdict(list)
            for run, points in self._results:
                if run.platform == platform:
                    for test, point in points.items():
                        found[test].append(point)
            self._timelines[platform] = dict(sorted(found.items()))
        return self._timelines[platform]


def open_history(sources: Sequence[Path]) -> History:
    """Return the history in records and journals: each run once, its record rather than its journal.

    Args:
        sources: Folders, searched with those in them that are not hidden, or files.

    Raises:
        RecordError: A source is not there.
    """
    paths, problems = _find_files(sources)
    found: dict[str, tuple[RecordedRun, dict[str, Point]]] = {}
    for path in sorted(paths, key=lambda path: (is_journal(path), str(path))):
        try:
            run, points = parse(path)
        except RecordError as error:
            problems.append(Problem(path, str(error).removeprefix(f"{path}: ")))
            continue
        if run.id in found:
            problems.append(Problem(path, f"of the same run as {found[run.id][0].path}, which counts"))
        else:
            found[run.id] = run, points
    return History(found.values(), problems)


def _find_files(sources: Sequence[Path]) -> tuple[list[Path], list[Problem]]:
    """Return every record and journal, once however many links lead to it, and the files that can't be read.

    In folders, and those below them, a file is asked for by how its name ends; one that is named itself is taken as it
    is.

    Raises:
        RecordError: A source is not there.
    """
    found: dict[str, Path] = {}
    problems: list[Problem] = []

    def note(error: OSError) -> None:
        problems.append(Problem(Path(error.filename), f"cannot be read: {error.strerror}"))

    for source in sources:
        if not os.path.lexists(source):
            raise RecordError(f"{source}: there is no such file or folder. Allowed: records, and folders of records.")
        if not os.path.isdir(source):
            paths = [source]
        elif not (paths := list(_walk(source, note))):
            problems.append(Problem(source, "no record in it. pytest --hw=PROFILE --rl-record-dir=DIR writes one"))
        for path in paths:
            if os.path.isfile(path):
                found.setdefault(os.path.realpath(path), path)
            else:  # to read a pipe could take for ever
                problems.append(Problem(path, "no file that can be read"))
    return list(found.values()), problems


def _walk(source: Path, note: Callable[[OSError], None]) -> Iterator[Path]:
    for folder, below, names in os.walk(source, onerror=note):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if name.endswith((".json", JOURNAL)) and not name.startswith("."):
                yield Path(folder, name)


def parse(path: Path) -> tuple[RecordedRun, dict[str, Point]]:
    """Read a record, or the journal of a run; returns the run, and the result of each test.

    Raises:
        RecordError: The file isn't a record or is incomplete; the message names it.
    """
    record = read(path)
    results, extra = record.results, record.results.extra
    run = RecordedRun(
        id=record.report_id,
        path=path,
        start=results.summary.start / 1000,
        seconds=(results.summary.stop - results.summary.start) / 1000,
        extra=extra,
        lock=_lock(tuple(extra.stack.requirements)),
        numbers=step_numbers.read_numbers([(test.name, test.extra.measured) for test in results.tests]),
    )
    try:
        _ = run.night
    except (ValueError, OverflowError):
        raise RecordError(f"{path}: does not say when its run began: {results.summary.start} isn't a time") from None
    return run, {intern(name): _make_point(run, test) for name, test in worst_by_name(results.tests).items()}


def worst_by_name(tests: Iterable[RecordedTest]) -> dict[str, RecordedTest]:
    """Key tests by name; of those with the same name the worst counts, or the first."""
    found: dict[str, RecordedTest] = {}
    for test in tests:
        if test.name not in found or rank(test.word) > rank(found[test.name].word):
            found[test.name] = test
    return found


def _make_point(run: RecordedRun, test: RecordedTest) -> Point:
    extra = test.extra
    note = (extra.note or test.message).strip().partition("\n")[0]
    if len(note) > NOTE_CHARACTERS:
        note = f"{note[: NOTE_CHARACTERS - 1]}…"
    return Point(
        run,
        word=intern(test.word),
        failure=intern(extra.failure),
        side=intern(extra.side),
        note=intern(note),
        components=intern(extra.components),
        fidelity=intern(extra.fidelity),
        subject=intern(extra.subject),
        flaky=bool(test.flaky),
    )


@lru_cache(maxsize=1024)
def _lock(requirements: tuple[str, ...]) -> Lock:
    """Read what was installed; a package from a folder, which may be another machine's, goes by the folder's name."""
    return Lock({_package(line): line for line in requirements})


def _package(line: str) -> str:
    if line.startswith("-e "):
        return canonicalize_name(Path(line[3:]).name)
    return canonicalize_name(line.partition(" @ ")[0].partition("==")[0])


def read_entry(run: RecordedRun, test: str) -> RecordedTest:
    """Read a test's entry in the record of a run; says so where that has gone since the history was opened."""
    try:
        return _read_entries(run.path)[test]
    except (RecordError, KeyError) as error:
        why = f"its record can no longer be read: {error}"
    return RecordedTest(test, "other", "interrupted", 0, "", message=why)


@lru_cache(maxsize=4)
def _read_entries(path: Path) -> Mapping[str, RecordedTest]:
    return worst_by_name(read(path).results.tests)
