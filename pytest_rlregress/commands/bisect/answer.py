"""The answer of a bisect: what was asked, where the test flips, and every trial."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlregress.commands.trials.summaries import RunContext, TrialSummary, Untested


@dataclass(frozen=True)
class DocumentedFailure:
    """The documented failure that the bad end shows."""

    id: str
    title: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class BisectRequest:
    """What was asked.

    Attributes:
        test: The test, as asked for: a scenario or a node id.
        good: The good end in words: ``transformers 4.57.1``, ``lock-monday.txt``, ``v1.0 (3f1c2aa)``.
        bad: The bad end in words.
        documented: The failure at the bad end, where it is a documented one.
    """

    test: str
    good: str
    bad: str
    documented: DocumentedFailure | None = None


@dataclass(frozen=True)
class Endpoint:
    """What the test did at one candidate: an end, the last good one or the first bad one.

    Attributes:
        label: Where: ``4.57.6``, ``lock-monday.txt``, ``3f1c2aa``.
        date: ISO day of its release or commit, None where unknown.
        verdict: The verdict, ``reproduced``, or ``passed``, ``failed``, …; "" where it was not tested.
        text: What came out, or "" where it passed.
        title: A commit's subject, or "".
        conflict: Why its environment could not be built, all that was said; else "".
    """

    label: str
    date: str | None = None
    verdict: str = ""
    text: str = ""
    title: str = ""
    conflict: str = ""


@dataclass(frozen=True)
class Culprit:
    """Where the verdict flips: two neighbours among what could be tested.

    Attributes:
        name: The package, the packages that can only be moved together (``torch, vllm``), or the checkout.
        last_good: The last good one, going from the good end to the bad end.
        first_bad: The first bad one.
        repaired: Whether the bad one is the older: the failure was repaired, not introduced.
        between: What lies between the two and could not be tested. Not empty: narrowed to a set, no more.
        moved: What differs between the two locks beside ``name``, as ``name before -> after``.
        from_base: What differs between the lock of ``first_bad`` and the one that was held fixed, in the same form.
        skipped: The other candidates that could not be tested.
        details: What else is known of it, each with a title: of a commit the files that it changed.
    """

    name: str
    last_good: Endpoint
    first_bad: Endpoint
    repaired: bool = False
    between: tuple[Untested, ...] = ()
    moved: tuple[str, ...] = ()
    from_base: tuple[str, ...] = ()
    skipped: tuple[Untested, ...] = ()
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ChangedSet:
    """The smallest set of upgrades, of those between two locks, that flips the test.

    Attributes:
        changed: Number of packages that differ.
        minimal: The changes, as ``name before -> after``, that were seen to flip the verdict with everything else as at
            the good end, but for what they need.
        moved_along: The changes that these need.
        proven: Whether it was seen good without any one of them.
        groups: The packages that can only be moved together, by their requirements: groups of two and more.
        undecided: Of the minimal set, the packages that what could not be tested keeps from being told apart: one of
            each such group flips the verdict. Not empty: narrowed to a set, no more.
    """

    changed: int
    minimal: tuple[str, ...]
    moved_along: tuple[str, ...] = ()
    proven: bool = True
    groups: tuple[tuple[str, ...], ...] = ()
    undecided: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class NotFound:
    """Why there is no answer.

    Attributes:
        kind: ``fails at both``, ``passes at both``, ``swapped``, ``flaky end``, ``untested end`` or
            ``not monotone``.
        first: What it is about in words: the good end; the end that is flaky or untested; the bad candidate that comes
            before a good one.
        second: The bad end; that good candidate; else "".
        reason: The counts of a flaky end, or why an end could not be tested.
        command: For ``swapped``: what asks the other way round.
        advice: Options that may let it be found, in sentences.
    """

    kind: str
    first: str
    second: str = ""
    reason: str = ""
    command: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a bisect found.

    Attributes:
        request: What was asked.
        culprits: Where the verdict flips; empty where ``not_found``.
        ends: The good end and the bad end as they were seen, the first two things tried.
        run_context: Where it was tried.
        tried: Every trial, in the order of the trying.
        seconds: Wall-clock seconds of this bisect, an interrupted one's earlier time included.
        command: What asks the same again.
        changed: For two locks.
        not_found: Why there is no culprit.
        also_flip: Other tests that flip at the same place.
        flip_elsewhere: Other tests that flip between the ends, but at another place.
    """

    request: BisectRequest
    ends: tuple[Endpoint, Endpoint]
    run_context: RunContext
    tried: tuple[TrialSummary, ...]
    seconds: float
    command: tuple[str, ...]
    culprits: tuple[Culprit, ...] = ()
    changed: ChangedSet | None = None
    not_found: NotFound | None = None
    also_flip: tuple[str, ...] = ()
    flip_elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an answer that says nothing, or two things."""
        if bool(self.not_found) == bool(self.culprits or self.changed):
            raise ValueError("an answer has culprits or a changed set, or else says why it was not found")

    @property
    def exit_code(self) -> int:
        """0 found, 1 not reproduced or not monotone, 3 narrowed to a set that could not be tested."""
        if self.not_found:
            return 1
        undecided = self.changed is not None and self.changed.undecided
        return 3 if undecided or any(culprit.between for culprit in self.culprits) else 0
