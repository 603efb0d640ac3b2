"""The types of a report: runs, the results of their tests, and what changed.

A *platform* is one hardware profile over time. A *night* lasts from noon to noon UTC and is named by the day it ends
on.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import msgspec

from pytest_rlregress.failures.verdicts import Rank, rank
from pytest_rlregress.records.record_types import PytestCall, RunExtra
from pytest_rlregress.stack.locks import Lock

#: Runs and points by night, for bisecting them.
by_night = attrgetter("night")


def night_of(moment: float) -> datetime.date:
    """Return the night of a moment, which is in seconds since 1970."""
    noon = datetime.timedelta(hours=12)
    return (datetime.datetime.fromtimestamp(moment, datetime.UTC) + noon).date()


class Kind(StrEnum):
    """What became of a test, against the last run in which it was good; the most urgent first.

    Attributes:
        sentence: What it means.
    """

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Kind:
        """Make a string of the word, with what it means."""
        kind = str.__new__(cls, word)
        kind._value_, kind.sentence = word, sentence
        return kind

    REGRESSION = "regression", "worse, and every run since agrees, two at least: tonight's rerun, or last night's"
    HARDWARE_CHANGE = "hardware change", "the same, on other hardware than when it was good: not comparable"
    UNCONFIRMED = "unconfirmed", "worse, in the only run since: run it again"
    NEW_FAILING = "new failing", "fails, and has not run on this hardware before: nothing to compare with"
    FLAKE = "flake", "a rerun in the same night, with nothing changed, disagrees"
    LOST = (
        "lost",
        "had a result in the run before, and has none tonight though the hardware ran: a skip is never a pass",
    )
    REPAIRED = "repaired", "better than in the run before"
    KNOWN = "known", "bad in every run on this hardware"
    STEADY = "steady", "good as before; or seen for the first time, and it does not fail"


#: Kinds that say something got worse, or may have.
WORSE = (Kind.REGRESSION, Kind.HARDWARE_CHANGE, Kind.UNCONFIRMED, Kind.FLAKE)
#: Kinds of which nobody need be told.
QUIET = (Kind.KNOWN, Kind.STEADY)
#: Kinds that are told of in full; the rest is counted.
TOLD = tuple(kind for kind in Kind if kind not in QUIET)


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
        numbers: What training steps measured, by name: ``pytest_rlregress.goldens.step_numbers.read_numbers``.
    """

    id: str
    path: Path
    start: float
    seconds: float
    extra: RunExtra
    lock: Lock
    numbers: Mapping[str, float] = field(default_factory=dict)

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
        components: The parts of the stack that its failure is about, with commas.
        fidelity: How real the test was; "" where the record does not say.
        subject: The function under a guard, as ``package.module:function``.
        flaky: It was run again within the run, and its attempts disagree.
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
    """A file that isn't a whole record, or is a copy of one."""

    path: Path
    text: str


@dataclass(frozen=True)
class Flaky:
    """A flaky test: ``bad`` of ``runs`` runs under the same conditions were worse than the others."""

    platform: str
    test: str
    failure: str
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


@dataclass(frozen=True)
class RunComparison:
    """The changes from a run to those after it: one, and its reruns; a change for each test that says something."""

    before: RecordedRun
    after: tuple[RecordedRun, ...]
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...] = ()
