"""Count what logs show: documented failures, and what is none of them. Memory does not grow with the logs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_rlregress.catalogue import Catalogue, Failure
from pytest_rlregress.diagnose import matching
from pytest_rlregress.diagnose.events import Chain
from pytest_rlregress.diagnose.search import Search
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.verdicts import Outcome

_PLACES, _LINES, _UNKNOWN, _REFUSALS = 3, 12, 100, 10
# So many times must "0/8 rollouts" stand there, and no rollout after it, before it is a stall and not a beginning.
_STUCK_TIMES = 3
_NUMBER = re.compile(r"0x[\da-f]+|\d+")
_PROGRESS = re.compile(r"\b(\d+)/\d+ rollouts")


@dataclass(frozen=True)
class LogPosition:
    """Where something stands in a log: the number of its first line, and the lines."""

    log: str
    lines: tuple[tuple[int, str], ...]

    @property
    def number(self) -> int:
        """Number of the first line."""
        return self.lines[0][0]

    def __str__(self) -> str:
        """As compilers write it: ``run.log:12``."""
        return f"{self.log}:{self.number}"


@dataclass
class LogFinding:
    """Something that logs show, how often and where first: a documented failure, or an unknown event."""

    what: str
    failure: Failure | None = None
    specificity: int = 0
    count: int = 0
    places: list[LogPosition] = field(default_factory=list)

    def add(self, log: str, lines: Iterable[Line]) -> None:
        """Count one more."""
        self.count += 1
        if len(self.places) < _PLACES:
            shown = [(line.number, line.printed.rstrip()) for line in lines]
            if len(shown) > _LINES:
                shown = [*shown[: _LINES // 2], *shown[-_LINES // 2 :]]
            self.places.append(LogPosition(log, tuple(shown)))


class Diagnosis:
    """Reads logs line by line, and counts what they show."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.failures = tuple(catalogue.values())
        self.search = Search(self.failures)
        self.left_out = 0
        self._documented: dict[str, LogFinding] = {}
        self._unknown: dict[str, LogFinding] = {}
        self._stall = _Stall(self.failures)

    @property
    def documented(self) -> list[LogFinding]:
        """The documented failures, the most specifically identified first, then in the logs' order."""
        return sorted(self._documented.values(), key=lambda finding: -finding.specificity)

    @property
    def unknown(self) -> list[LogFinding]:
        """What was seen and is not documented, in the logs' order; ``left_out`` more kinds of it are not in here."""
        return list(self._unknown.values())

    def read(self, log: str, lines: Iterable[Line]) -> None:
        """Read the lines of one log."""
        for chain in matching.read((self._stall.observe(log, line) for line in lines), self.failures):
            self._add(log, chain)

    def end(self) -> None:
        """End the last log: whether it waits for rollouts is known only now."""
        outcome = self._stall.outcome()
        if outcome:
            for named in matching.name_outcome(outcome, self.failures):
                self._name(named, *self._stall.place)

    def _add(self, log: str, chain: Chain) -> None:
        named = [(one, event) for event in chain for one in matching.name_event(event, self.failures)]
        for one, event in named:
            self._name(one, log, event.lines)
        if not named:
            first = chain[0]
            what = first.headline[:300]
            key = _NUMBER.sub("0", what)
            if key not in self._unknown and len(self._unknown) >= _UNKNOWN:
                self.left_out += 1
                return
            self._unknown.setdefault(key, LogFinding(what)).add(log, first.lines)

    def _name(self, named: matching.NamedFailure, log: str, lines: Iterable[Line]) -> None:
        failure = named.failure
        finding = self._documented.setdefault(failure.id, LogFinding(failure.title, failure))
        finding.specificity = max(finding.specificity, named.specificity)
        finding.add(log, lines)


class _Stall:
    """Whether a log ends waiting for rollouts that were refused: neither of the two is a failure alone."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        signatures = [signature for failure in failures for signature in failure.signatures]
        self._refusal = [signature.log for signature in signatures if signature.kind == "hung" and signature.log]
        self._refusals: list[str] = []
        self._stuck = 0
        self.place: tuple[str, tuple[Line, ...]] = ("", ())

    def observe(self, log: str, line: Line) -> Line:
        """Look at a line, and pass it on."""
        progress = _PROGRESS.search(line.text) if "rollouts" in line.text else None
        if progress and int(progress[1]):
            self._stuck = 0
        elif progress:
            self._stuck += 1
            if self._stuck == _STUCK_TIMES:
                self.place = (log, (line,))
        if len(self._refusals) < _REFUSALS and any(pattern.search(line.printed) for pattern in self._refusal):
            self._refusals.append(line.printed)
        return line

    def outcome(self) -> Outcome | None:
        """A hang, if that is what it amounts to."""
        if self._stuck < _STUCK_TIMES:
            return None
        return Outcome("hung", message="no rollout comes back", log="\n".join(self._refusals))
