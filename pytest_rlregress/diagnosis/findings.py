"""Count what logs show: documented failures, and what is none of them. Memory does not grow with the logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_rlregress.diagnosis import matching
from pytest_rlregress.diagnosis.events import Chain, headline
from pytest_rlregress.diagnosis.matching import Fit
from pytest_rlregress.diagnosis.patterns import starts_traceback
from pytest_rlregress.diagnosis.reader import Search
from pytest_rlregress.failures.catalogue import Catalogue, Failure
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.logs.signals import STOPPING

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
    """Something that logs show, how often and where first: a failure, or an unknown event."""

    what: str
    failure: Failure | None = None
    signal: str | None = None
    specificity: int = 0
    confirm: tuple[str, ...] = ()
    count: int = 0
    places: list[LogPosition] = field(default_factory=list)

    def add(self, log: str, lines: Iterable[Line]) -> None:
        """Count one more."""
        self.count += 1
        if len(self.places) < _PLACES:
            lines = list(lines)
            telling = [line for line in lines if not starts_traceback(line.text)] or lines
            shown = [(line.number, line.printed.rstrip()) for line in telling]
            if len(shown) > _LINES:
                shown = [*shown[: _LINES // 2], *shown[-_LINES // 2 :]]
            self.places.append(LogPosition(log, tuple(shown)))


#: How often and where something happened that fits these signatures.
_Seen = dict[tuple[Fit, ...], LogFinding]


class Diagnosis:
    """Reads logs line by line, and counts what they show.

    Attributes:
        documented: After the end: the documented failures, the most specifically identified first, then in the
            logs' order.
        possible: After the end: those of which the logs show no more than other programs produce too.
        unknown: After the end: what was seen and is not documented, in the logs' order.
        left_out: How many more kinds of unknown events there are than ``unknown`` has.
        minor: How many exit statuses and errors without a class are left out of ``unknown``, since others explain them.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.failures = tuple(catalogue.values())
        self.search = Search(self.failures)
        self.documented: list[LogFinding] = []
        self.possible: list[LogFinding] = []
        self.unknown: list[LogFinding] = []
        self.left_out = self.minor = 0
        self._logs: list[str] = []
        # By the signatures that the events of a chain fit: at the end of all logs, their clues decide.
        self._seen: dict[tuple[tuple[Fit, ...], ...], _Seen] = {}
        self._unknown: dict[str, LogFinding] = {}
        self._minor: dict[str, LogFinding] = {}
        self._signals: set[str | None] = set(STOPPING) | {None}  # that say nothing new
        self._stall = _Stall(self.failures)

    def read(self, log: str, lines: Iterable[Line]) -> None:
        """Read the lines of one log."""
        self._logs.append(log)
        for chain in matching.read((self._stall.observe(log, line) for line in lines), self.search):
            fits = [matching.fit_event(event, self.search) for event in chain]
            self._signals |= {
                event.outcome.signal for event, some in zip(chain, fits, strict=True) if some or not event.minor
            }
            if any(fits):
                self._add(log, [(one, event.lines) for one, event in zip(fits, chain, strict=True) if one])
            else:
                self._add_unknown(log, chain)

    def end(self) -> None:
        """End the last log: whether it waits for rollouts, and which clues there are, is known only now."""
        outcome = self._stall.outcome()
        fits = matching.fit_outcome(outcome, self.search) if outcome else ()
        if fits:
            log, lines = self._stall.place
            self._add(log, [(fits, lines)])
        documented: dict[str, LogFinding] = {}
        possible: dict[str, LogFinding] = {}
        for seen in self._seen.values():
            named = {fits: matching.answers(fits, self.search.clues) for fits in seen}
            if any(named.values()):
                self._name(documented, seen, named)
            else:
                self._name(possible, seen, {fits: fits for fits in seen})
        self.documented = sorted(documented.values(), key=lambda finding: -finding.specificity)
        self.possible = [finding for name, finding in possible.items() if name not in documented]
        explained = bool(self._seen or self._unknown)
        minor = [one for one in self._minor.values() if not explained or one.signal not in self._signals]
        self.minor = sum(one.count for one in self._minor.values()) - sum(one.count for one in minor)
        self.unknown = sorted([*self._unknown.values(), *minor], key=lambda one: self._order(one.places[0]))

    def _add(self, log: str, fitting: Sequence[tuple[tuple[Fit, ...], Iterable[Line]]]) -> None:
        seen = self._seen.setdefault(tuple(dict.fromkeys(fits for fits, _ in fitting)), {})
        for fits, lines in fitting:
            seen.setdefault(fits, LogFinding("")).add(log, lines)

    def _add_unknown(self, log: str, chain: Chain) -> None:
        last = chain[-1]
        unknown = self._minor if all(event.minor for event in chain) else self._unknown
        what = headline(chain)[:300]
        key = _NUMBER.sub("0", what)
        if key not in unknown and len(unknown) >= _UNKNOWN:
            self.left_out += 1
            return
        unknown.setdefault(key, LogFinding(what, signal=last.outcome.signal)).add(log, last.lines)

    def _name(
        self, findings: dict[str, LogFinding], seen: _Seen, named: Mapping[tuple[Fit, ...], Iterable[Fit]]
    ) -> None:
        """Add what was seen to the findings of the failures that it is named as."""
        for fits, times in seen.items():
            by_id: dict[str, list[Fit]] = {}
            for fit in named[fits]:
                by_id.setdefault(fit.failure.id, []).append(fit)
            for name, one in by_id.items():
                failure = one[0].failure
                finding = findings.setdefault(name, LogFinding(failure.title, failure))
                finding.specificity = max(finding.specificity, *(fit.specificity for fit in one))
                finding.confirm = tuple(
                    dict.fromkeys((*finding.confirm, *(fit.signature.confirm for fit in one if fit.signature.confirm)))
                )
                finding.count += times.count
                finding.places = sorted((*finding.places, *times.places), key=self._order)[:_PLACES]

    def _order(self, place: LogPosition) -> tuple[int, int]:
        return self._logs.index(place.log), place.number


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
        """Return a hang, if that is what it amounts to."""
        if self._stuck < _STUCK_TIMES:
            return None
        return Outcome("hung", message="no rollout comes back", log="\n".join(self._refusals))
