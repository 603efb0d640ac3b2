"""The record of a run as types: what the writer fills, and what every reader gets. docs/record.md has the keys.

A record is a report in the Common Test Report Format, https://ctrf.io; what that has no place for is under ``extra``.
Times are in ms since 1970 or in ms, sizes in bytes. What has a default here may be missing in the record of an older
release.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec

from pytest_rlregress.failures.verdicts import EXPECTED, Outcome, Rank, Verdict, rank

#: Version of what is under ``extra``. Keys of format 2 that nothing decides by are passed over.
FORMAT = 3

#: The choice that adds tests, where the others leave some out; and one of those.
LONG = "--rl-long"
QUICK = "--rl-quick"

Status = Literal["passed", "failed", "skipped", "pending", "other"]
RawStatus = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "pending", "interrupted"]
#: How a run ended: it may still be going on, as far as can be told.
State = Literal["complete", "interrupted", "killed", "running"]


class HarnessProperties(msgspec.Struct, omit_defaults=True):
    """What the harness says of a test: its reports' properties that begin with ``rlregress_``.

    ``measured`` are a training step's numbers, null where there is none, and ``golden`` is how they compare;
    ``stand_ins`` is what took a real part's place in it. ``fidelity`` says how real a side of a failure is. ``outcome``
    and ``named``, the ids of the documented failures that it looks like, are in the records of trials only.
    """

    failure: str = ""
    side: str = ""
    verdict: str = ""
    note: str = ""
    untried: str = ""  # of a bad verdict: the releases here that the failure was not tried with
    cause: str = ""  # of a bad test: what failed at its root
    subject: str = ""
    components: str = ""  # of the failure, with commas
    hardware: str = ""
    component: str = ""  # that a check tried, in place of a failure
    fidelity: str = ""
    stand_ins: str = ""
    measured: dict[str, Any] = {}
    golden: dict[str, Any] = {}
    outcome: Outcome | None = None
    named: str = ""  # with commas
    bad: str = ""  # of a test whose act or set-up failed: the word by which a file of expectations has it
    expected: str = ""  # of a bad verdict that the file of expectations has: the issue, and the entry's place


class RecordedTest(msgspec.Struct, rename="camel", omit_defaults=True):
    """What came of one test, or of a file that could not be collected."""

    name: str
    status: Status
    raw_status: RawStatus
    duration: Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
    file_path: str
    extra: HarnessProperties = msgspec.field(default_factory=HarnessProperties)
    retries: int = 0
    flaky: bool | None = None
    message: str = ""
    trace: str = ""

    @property
    def word(self) -> str:
        """The result: the verdict, or pytest's word; ``expected`` for a bad one that the file of expectations has.

        That is pytest's where there is no verdict, where one that does not fail the run was followed by an error in
        teardown, and where a guard was unavailable though the run was promised it.
        """
        if self.extra.expected and self.status != "failed":
            return EXPECTED
        verdict, status = self.extra.verdict, self.raw_status
        if not verdict or (status == "error" and rank(verdict) is not Rank.FAILING):
            return status
        return status if verdict == Verdict.UNAVAILABLE and status == "failed" else verdict


class JournalLine(msgspec.Struct):
    """What became known of a test."""

    at: int
    nodeid: str
    test: RecordedTest


class InstalledStack(msgspec.Struct):
    """What was installed: every package as the line that installs it again, and the components by version."""

    requirements: list[str]
    python: str = ""
    versions: dict[str, str] = {}


class Processor(msgspec.Struct):
    """The processor's name, and how many of its cores pytest might use, logical ones."""

    model: str
    cores: int


class RecordedDevice(msgspec.Struct):
    """A GPU or MIG slice; its memory is None where the driver does not say."""

    name: str
    memory_bytes: int | None = None
    mig: bool = False
    capability: str = ""


class RecordedHardware(msgspec.Struct):
    """The profile of the run, and the machine; no profile for a card that has none, without ``--hw``."""

    profile: str | None = None
    driver: str | None = None
    cpu: Processor | None = None
    devices: list[RecordedDevice] = []


class PytestCall(msgspec.Struct):
    """How pytest was called.

    Attributes:
        selection: What chose the tests: paths, ``-k``, ``--rl-long`` and their like; empty for the default run.
        settings: The ini file, and what differs from the defaults.
    """

    arguments: list[str] = []
    selection: list[str] = []
    settings: dict[str, str] = {}

    @property
    def narrowing(self) -> list[str]:
        """Those of the choices that leave some tests out."""
        return [choice for choice in self.selection if choice != LONG]

    @property
    def is_quick(self) -> bool:
        """Whether it was a quick run: its records are a platform of their own, never mixed with whole runs."""
        return QUICK in self.selection and LONG not in self.selection

    def covers(self, other: PytestCall) -> bool:
        """Return whether it chose every test that the other run chose, as far as the choices say."""
        return self.narrowing == other.narrowing and (LONG in self.selection or LONG not in other.selection)


class CheckoutState(msgspec.Struct):
    """The commit of a checkout, and whether tracked files differ from it."""

    commit: str
    dirty: bool


class RunExtra(msgspec.Struct):
    """What a run ran on, and how it ended; ``answer`` says in up to three lines what it found.

    ``digest`` is of all of ``results`` but itself, so that an edit by hand is noticed; empty in a journal.
    """

    format: int
    stack: InstalledStack
    run: PytestCall = msgspec.field(default_factory=PytestCall)
    hardware: RecordedHardware = msgspec.field(default_factory=RecordedHardware)
    git: CheckoutState | None = None
    state: State = "complete"
    answer: list[str] = []
    digest: str = ""


class Tool(msgspec.Struct):
    """What ran the tests."""

    name: str
    version: str


class Summary(msgspec.Struct, kw_only=True):
    """Tests by status, and when the run began and ended, by a clock that is not set while tests run."""

    tests: int
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    pending: int = 0
    other: int = 0
    start: int
    stop: Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class Results(msgspec.Struct):
    """What a run found."""

    tool: Tool
    summary: Summary
    tests: list[RecordedTest]
    extra: RunExtra


class Record(msgspec.Struct, rename="camel"):
    """One run of pytest; its journal and each copy of its record have the same ``report_id``."""

    report_format: Literal["CTRF"]
    spec_version: str
    report_id: str
    timestamp: str
    generated_by: str
    results: Results


def find_area(name: str, failure: str) -> str:
    """Return the area of a test: the folder that its failure's is in, else the first one of its name."""
    folders = name.partition("::")[0].split("/")
    if failure and (own := failure.replace("-", "_")) in folders[1:]:
        return folders[folders.index(own, 1) - 1]
    return folders[0]


def begun(start: int, extra: RunExtra) -> Record:
    """Build the record of a run that has just begun."""
    return Record(
        report_format="CTRF",
        spec_version="0.0.0",  # the one that the format's reference implementation reads
        report_id=str(uuid4()),
        timestamp="",
        generated_by=f"pytest-rlregress {metadata.version('pytest-rlregress')}",
        results=Results(
            tool=Tool("pytest", metadata.version("pytest")),
            summary=Summary(tests=0, start=start, stop=start),
            tests=[],
            extra=extra,
        ),
    )
