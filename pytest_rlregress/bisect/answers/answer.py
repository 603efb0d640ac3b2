"""What a bisect found, and how what is shown of it is made fit to be shown."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_rlregress.bisect.trials.observations import State, Trial
from pytest_rlregress.logs.ansi import stripped


@dataclass(frozen=True)
class Documented:
    """The failure of the bad end, where the catalogue has it."""

    id: str
    title: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class BisectQuestion:
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
    documented: Documented | None = None


@dataclass(frozen=True)
class Skipped:
    """A candidate that says nothing: yanked, no wheel, a resolver conflict, another failure, flaky."""

    label: str
    reason: str


@dataclass(frozen=True)
class SeenFailure:
    """What the test did at one place.

    Attributes:
        label: Where: ``4.57.6``, ``lock-monday.txt``, ``3f1c2aa``.
        date: ISO day of its release or commit, None where unknown.
        verdict: The judge's word, ``reproduced``, or ``passed``, ``failed``, …; "" where it was not tested.
        text: What came out, or "" where it passed.
        title: A commit's subject, or "".
    """

    label: str
    date: str | None = None
    verdict: str = ""
    text: str = ""
    title: str = ""


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
    last_good: SeenFailure
    first_bad: SeenFailure
    repaired: bool = False
    between: tuple[Skipped, ...] = ()
    moved: tuple[str, ...] = ()
    from_base: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ChangedSet:
    """Of two locks: how many packages differ, and which of them it takes.

    Attributes:
        changed: Number of packages that differ.
        minimal: The changes, as ``name before -> after``, that were seen to flip the verdict with everything else as at
            the good end, but for what they need.
        along: The changes that these need.
        least: Whether it was seen good without any one of them.
        groups: The packages that can only be moved together, by their requirements: groups of two and more.
        undecided: Of the minimal set, the packages that what could not be tested keeps from being told apart: one of
            each such group flips the verdict. Not empty: narrowed to a set, no more.
    """

    changed: int
    minimal: tuple[str, ...]
    along: tuple[str, ...] = ()
    least: bool = True
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
    """

    kind: str
    first: str
    second: str = ""
    reason: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunContext:
    """Where it was tried.

    Attributes:
        python: ``3.12.3``.
        platform: ``Linux x86_64, glibc 2.39``.
        hardware: The profile and the devices, in words.
        held: Versions of the main components of the stack that were the same throughout.
        left_out: What of this environment the trials' environments did not have, in words.
    """

    python: str
    platform: str
    hardware: str
    held: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tried:
    """A trial in one line.

    Attributes:
        label: The candidate in words.
        state: ``good``, ``bad`` or ``unknown``.
        verdict: The judge's word, several where repeats differ; "" where there was no run.
        seconds: To build its environment and run its tests.
        runs: How many runs it had.
        reason: Why it is unknown.
    """

    label: str
    state: State
    verdict: str
    seconds: float
    runs: int = 1
    reason: str = ""


def tried(trial: Trial, test: str, state: State, reason: str = "") -> Tried:
    """A trial in one line, about the test of that key."""
    seen = [run.observations[test].verdict for run in trial.runs if test in run.observations]
    words = [word if seen.count(word) == len(seen) else f"{seen.count(word)} {word}" for word in dict.fromkeys(seen)]
    if trial.same_as:
        reason = reason or f"the same packages as {trial.same_as}"
    runs = 0 if trial.same_as else len(trial.runs)
    return Tried(trial.label, state, ", ".join(words), trial.seconds, runs, reason)


@dataclass(frozen=True)
class Answer:
    """What a bisect found.

    Attributes:
        question: What was asked.
        culprits: Where the verdict flips; empty where ``not_found``.
        ends: The good end and the bad end as they were seen, the first two things tried.
        run_context: Where it was tried.
        tried: Every trial, in the order of the trying.
        seconds: Wall-clock seconds of this bisect, an interrupted one's earlier time included.
        command: What asks the same again.
        changed: For two locks.
        not_found: Why there is no culprit.
        here: Other tests that flip at the same place.
        elsewhere: Other tests that flip between the ends, but at another place.
    """

    question: BisectQuestion
    ends: tuple[SeenFailure, SeenFailure]
    run_context: RunContext
    tried: tuple[Tried, ...]
    seconds: float
    command: tuple[str, ...]
    culprits: tuple[Culprit, ...] = ()
    changed: ChangedSet | None = None
    not_found: NotFound | None = None
    here: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()

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


# -- what can be shown: no credentials, no home folder, nothing that moves a terminal's cursor ------------------------

_CREDENTIALS = re.compile(r"(?<!ssh)://[^/\s]*@|://[^/\s]*:[^/\s]*@")


def shareable(text: str) -> str:
    """A text that may be shown to anyone: no credentials in URLs, no control characters, paths as seen from here.

    Those below the current folder are relative to it; of others the home folder is ``~``.
    """
    text = stripped(text.replace("\r\n", "\n").replace("\r", "\n"))
    text = "".join(character if _shown(character) else "\ufffd" for character in text)
    return _home().sub("~", _here().sub("", _CREDENTIALS.sub("://***@", text)))


def _here() -> re.Pattern[str]:
    folder = os.getcwd().rstrip("/")
    return re.compile(rf"(?<![\w.~/-]){re.escape(folder)}/(?=\w)" if folder else "(?!)")


def _home() -> re.Pattern[str]:
    home = os.path.expanduser("~")
    folders = {folder.rstrip("/") for folder in (home, os.path.realpath(home))} - {"", "~"}
    return re.compile(rf"(?<![\w.~-])(?:{'|'.join(map(re.escape, folders))})(?![\w.-])" if folders else "(?!)")


def _shown(character: str) -> bool:
    if character in "\n\t":
        return True
    turns = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"  # the direction of what follows
    return not turns and unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")


def shell(command: Sequence[str]) -> str:
    """A command as it is typed into a shell, without credentials; what lies in the home folder by ``~``."""
    return " ".join(map(_word, command))


def _word(word: str) -> str:
    first, *inside = (_quoted(shareable(part)) for part in _home().split(word))
    if not inside:
        return first or "''"
    return '"$HOME"'.join([first, *inside]) if first else "~" + '"$HOME"'.join(inside)


def _quoted(part: str) -> str:
    rest = part.removeprefix("/")  # a slash after ~ has to be seen
    return part[: len(part) - len(rest)] + (rest and shlex.quote(rest))


def duration(seconds: float) -> str:
    """``14 s``, ``1 min 12 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, word: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {word}{'s' * (number != 1)}"
