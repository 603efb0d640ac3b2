"""The history of runs: find records and journals, read them, put each test's results in a row.

A *platform* is one hardware profile over time. A *night* lasts from noon to noon UTC and is named by the day it ends
on.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import attrgetter
from pathlib import Path
from sys import intern

import msgspec
from packaging.utils import canonicalize_name

from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.reader import JOURNAL, RecordError, is_journal, read
from pytest_rlregress.records.record_types import PytestCall, RecordedTest, RunExtra
from pytest_rlregress.records.step_numbers import JudgedNumber, MeasuredStep, name_numbers, read_steps
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.util.text import clean, quoted

#: A note is one line; the whole text stays in the record.
NOTE_CHARACTERS = 300
_WORD = 300

#: Runs and points by night, for bisecting them.
by_night = attrgetter("night")


def night_of(moment: float) -> datetime.date:
    """Return the night of a moment, which is in seconds since 1970."""
    noon = datetime.timedelta(hours=12)
    return (datetime.datetime.fromtimestamp(moment, datetime.UTC) + noon).date()


@dataclass(frozen=True)
class RecordedRun:
    """One recorded run, without the results of its tests.

    Attributes:
        id: Of the run, not of the file: a copy has the same.
        path: The record, or the journal of a run that was killed.
        start: Seconds since 1970.
        seconds: How long it took.
        extra: What the record says of the run.
        lock: Every installed package.
        steps: What training steps measured, the goldens' tests first.
    """

    id: str
    path: Path
    start: float
    seconds: float
    extra: RunExtra
    lock: Lock
    steps: Sequence[MeasuredStep] = ()

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The numbers that each training step measured, by name."""
        return name_numbers(self.steps)

    @cached_property
    def night(self) -> datetime.date:
        """The night of the run."""
        return night_of(self.start)

    @property
    def call(self) -> PytestCall:
        """How pytest was called."""
        return self.extra.run

    @property
    def profile(self) -> str:
        """Id of the hardware profile, "" where there was none."""
        return self.extra.hardware.profile or ""

    @cached_property
    def platform(self) -> str:
        """The profile, "unknown" for none; with ", quick" behind it for a quick run."""
        return (self.profile or "unknown") + (", quick" if self.call.is_quick else "")

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Name of each GPU; none on a CPU."""
        return tuple(device.name for device in self.extra.hardware.devices)

    @property
    def commit(self) -> str | None:
        """Commit of the checkout that the tests are in."""
        return self.extra.git.commit if self.extra.git else None

    @property
    def dirty(self) -> bool:
        """Whether the checkout's files differ from it."""
        return self.extra.git is not None and self.extra.git.dirty

    @cached_property
    def hardware(self) -> tuple[object, ...]:
        """Runs in which this is equal are comparable: the GPUs' names; without GPU the CPU's model and cores."""
        cpu = self.extra.hardware.cpu
        return self.devices or ((cpu.model, cpu.cores) if cpu else (None, None))

    @cached_property
    def conditions(self) -> tuple[object, ...]:
        """What must be equal for two runs to agree."""
        settings, driver = tuple(sorted(self.call.settings.items())), self.extra.hardware.driver
        python = self.extra.stack.python
        return self.platform, self.lock.digest, python, self.commit, self.dirty, self.hardware, driver, settings


class Point(msgspec.Struct, frozen=True, gc=False):  # there are some hundred thousand of them
    """The result of one test in one run: a point of its timeline.

    Attributes:
        word: Its verdict; for a test without side pytest's word (``RecordedTest.word``).
        failure: The failure that it is a side of, "" for none; as is ``side``.
        note: Why, in a line: the verdict's note, the failure's first line, the reason of a skip.
        cause: What a bad test failed by at its root; "" where the record does not say.
        components: The parts of the stack that its failure is about, with commas.
        fidelity: How real the test was; "" where the record does not say.
        subject: The function under a guard, as ``package.module:function``.
        flaky: It was run again within the run, and its attempts disagree.
        number: The number of the test that this is the result of; None for the test itself.
    """

    run: RecordedRun
    word: str
    failure: str = ""
    side: str = ""
    note: str = ""
    components: str = ""
    fidelity: str = ""
    subject: str = ""
    flaky: bool = False
    cause: str = ""
    number: JudgedNumber | None = None

    @property
    def night(self) -> datetime.date:
        """The night of its run."""
        return self.run.night

    @property
    def rank(self) -> Rank:
        """How bad the result is."""
        return rank(self.word)

    @property
    def fails(self) -> bool:
        """Whether it fails the run; a documented failure that is reproduced does not."""
        return self.rank is Rank.FAILING

    @property
    def says_something(self) -> bool:
        """Whether it says anything about the stack: a skip or an interrupted test does not."""
        return self.rank is not Rank.NOTHING


@dataclass(frozen=True)
class Problem:
    """A file that isn't a whole record, or is a copy of one."""

    path: Path
    text: str


@dataclass(frozen=True)
class History:
    """Runs of several platforms, and what came of their tests.

    Attributes:
        runs: Each run once, ascending by start.
        problems: By path: each file that is not among the runs.
        timelines: By platform and test, both sorted: the test's results, the oldest first.
        trust: By id of a run, whether its steps' numbers are trusted, where that was decided by hand.
    """

    runs: tuple[RecordedRun, ...]
    problems: tuple[Problem, ...]
    timelines: Mapping[str, Mapping[str, Sequence[Point]]]
    trust: Mapping[str, bool] = field(default_factory=dict)


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
            run, points = _read_run(path)
        except RecordError as error:
            problems.append(Problem(path, str(error).removeprefix(f"{path}: ")))
            continue
        if run.id in found:
            problems.append(Problem(path, f"of the same run as {found[run.id][0].path}, which counts"))
        else:
            found[run.id] = run, points
    timelines: dict[str, dict[str, list[Point]]] = {}
    in_order = sorted(found.values(), key=lambda pair: (pair[0].start, pair[0].id))
    for run, points in in_order:
        tests = timelines.setdefault(run.platform, {})
        for test, point in points.items():
            tests.setdefault(test, []).append(point)
    return History(
        tuple(run for run, _ in in_order),
        tuple(sorted(problems, key=lambda problem: (str(problem.path), problem.text))),
        {platform: dict(sorted(tests.items())) for platform, tests in sorted(timelines.items())},
    )


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


def _read_run(path: Path) -> tuple[RecordedRun, dict[str, Point]]:
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
        steps=read_steps((test.name, test.extra.measured) for test in results.tests if test.extra.measured),
    )
    return run, {intern(name): _make_point(run, test) for name, test in _key_worst(results.tests).items()}


def _key_worst(tests: Iterable[RecordedTest]) -> dict[str, RecordedTest]:
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
    return Point(  # field by field: by their names it takes half as long again
        run,
        word=_intern(test.word),
        failure=_intern(extra.failure),
        side=_intern(extra.side),
        note=intern(note),
        components=_intern(extra.components),
        fidelity=_intern(extra.fidelity),
        subject=_intern(extra.subject),
        flaky=bool(test.flaky),
        cause=intern(extra.cause),
    )


@lru_cache(maxsize=4096)
def _intern(word: str) -> str:
    """Return a word of a record as it can be shown: anybody may have written it."""
    return intern(word if re.fullmatch(r"[\w .,:/-]{0,300}", word) else quoted(clean(word, _WORD)))


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
    return _key_worst(read(path).results.tests)
