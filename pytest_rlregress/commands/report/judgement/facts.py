"""The types of a report: runs, the results of their tests, and what changed.

A *platform* is one hardware profile over time. A *night* lasts from noon to noon UTC and is named by the day it ends
on.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import msgspec

from pytest_rlregress.commands.report.judgement.kinds import Kind
from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.record_types import RunExtra, State
from pytest_rlregress.records.selection import narrowing
from pytest_rlregress.stack.locks import Lock

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
        seconds: How long it took; None where the record does not say or its clock went backwards.
        platform: Id of the hardware profile, "unknown" where there was none; with ", quick" behind it for a quick run.
        devices: Name of each GPU; none on a CPU.
        driver: The GPUs' driver, None without one.
        commit: Of the checkout that the tests are in.
        lock: Every installed package.
        asked: What chose its tests; empty for the default run.
        numbers: What training steps measured, by name: ``pytest_rlregress.goldens.step_numbers.read_numbers``.
        extra: What the record says of the run: all of the above is in it, and more.
    """

    id: str
    path: Path
    start: float
    seconds: float | None
    platform: str
    state: State
    devices: tuple[str, ...]
    driver: str | None
    commit: str | None
    dirty: bool
    lock: Lock
    extra: RunExtra
    asked: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def night(self) -> datetime.date:
        """The night of the run."""
        return night_of(self.start)

    @property
    def only(self) -> tuple[str, ...]:
        """What of that left tests out."""
        return narrowing(self.asked)

    @cached_property
    def hardware(self) -> tuple[object, ...]:
        """Runs in which this is equal are comparable: the GPUs' names; without GPU the CPU's model and cores."""
        cpu = self.extra.hardware.cpu
        return self.devices or ((cpu.model, cpu.cores) if cpu else (None, None))

    @property
    def settings(self) -> Mapping[str, str]:
        """The ini file and the settings that are not the default; empty where the record does not say."""
        return self.extra.run.settings

    @cached_property
    def conditions(self) -> tuple[object, ...]:
        """What must be equal for two runs to agree."""
        settings = tuple(sorted(self.settings.items()))
        python = self.extra.stack.python
        return self.platform, self.lock.digest, python, self.commit, self.dirty, self.hardware, self.driver, settings


class Point(msgspec.Struct, frozen=True):  # there are some hundred thousand of them
    """The result of one test in one run: a point of its timeline.

    Attributes:
        word: Its verdict; for a test without side pytest's word (``RecordedTest.word``).
        note: Why, in a line: the verdict's note, the failure's first line, the reason of a skip.
        flaky: It was run again within the run, and its attempts disagree.
        components: The parts of the stack that its failure is about, with commas.
        fidelity: How real the test was; "" where the record does not say.
        subject: The function under a guard, as ``package.module:function``.
    """

    run: RecordedRun
    word: str
    failure: str | None = None
    side: str | None = None
    note: str = ""
    flaky: bool = False
    components: str = ""
    fidelity: str = ""
    subject: str = ""

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


@dataclass(frozen=True)
class Change:
    """What changed for one test on one platform, in one night.

    Attributes:
        test: Its key.
        before: Where it was last good before it got worse; None if it never was. For what was repaired or
            lost the run before.
        since: Where it was bad first since then; None for a good one.
        now: The worst of tonight; None if it did not run.
        nights: In how many nights it has been bad since ``since``.
        runs: In how many runs.
    """

    kind: Kind
    test: str
    before: Point | None
    since: Point | None
    now: Point | None
    nights: int = 0
    runs: int = 0

    @property
    def latest(self) -> Point:
        """The latest that is known of the test."""
        found = self.now or self.before
        assert found is not None
        return found

    @property
    def platform(self) -> str:
        """Where it is."""
        return self.latest.run.platform

    @property
    def trips(self) -> bool:
        """Whether the gate closes for it: it got worse, and that repeats."""
        return self.kind is Kind.REGRESSION

    @property
    def fails(self) -> bool:
        """Whether the test fails tonight."""
        return self.now is not None and self.now.fails

    @property
    def fails_as_before(self) -> bool:
        """Whether it fails tonight, and nothing about that is new."""
        return self.kind is Kind.KNOWN and self.fails


@dataclass(frozen=True)
class Problem:
    """A file that isn't a whole record, or a remark on one."""

    path: Path
    text: str


@dataclass(frozen=True)
class Flaky:
    """A flaky test: ``bad`` of ``runs`` runs under the same conditions were worse than the others."""

    platform: str
    test: str
    failure: str | None
    runs: int
    bad: int
    last: RecordedRun


@dataclass(frozen=True)
class PlatformNight:
    """One platform on one night. Without runs there is a missing run: nothing is known, and nothing is green.

    Attributes:
        name: Of the hardware profile.
        runs: Those of the night, ascending.
        last: The latest run before that night.
        results: The worst of the night, by test.
        changes: One for each test that ran this night or in the run before.
        word: ``no run``, ``good``, ``worse``, ``flake``, ``new failing``, ``known`` or ``interrupted``.
    """

    name: str
    runs: tuple[RecordedRun, ...]
    last: RecordedRun | None
    results: Mapping[str, Point]
    changes: tuple[Change, ...]
    word: str

    @property
    def tally(self) -> list[tuple[str, int]]:
        """How many tests of each word, the gravest first."""
        counts = Counter(point.word for point in self.results.values())
        return sorted(counts.items(), key=lambda item: (-rank(item[0]), item[0]))


@dataclass(frozen=True)
class Night:
    """One night over all platforms: platforms by name, flaky tests by rate."""

    date: datetime.date
    platforms: tuple[PlatformNight, ...]
    flaky: tuple[Flaky, ...]
    problems: tuple[Problem, ...]

    @property
    def changes(self) -> list[Change]:
        """Those of every platform."""
        return [change for platform in self.platforms for change in platform.changes]
