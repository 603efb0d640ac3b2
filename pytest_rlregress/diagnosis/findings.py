"""Name the failures that the events of logs show, by the signatures of the tests, and count them: documented ones,
those that could be one, and what else happened. Memory does not grow with the logs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pytest_rlregress.diagnosis.events import Chain, read_events
from pytest_rlregress.diagnosis.patterns import starts_traceback
from pytest_rlregress.diagnosis.reader import Search
from pytest_rlregress.failures.catalogue import Catalogue, Failure
from pytest_rlregress.failures.signatures import Example, Outcome, Signature
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.logs.signals import STOPPING

_PLACES, _LINES, _UNKNOWN, _LONGEST = 3, 12, 100, 300
_NUMBER = re.compile(r"0x[\da-f]+|\d+")


@dataclass(frozen=True)
class Fit:
    """A signature that an event fits.

    Attributes:
        has_clue: Whether the event itself has the clue that a weak one asks for; of one that asks for none never.
        specificity: How specific it is: a sentence says more than a class or a signal alone.
    """

    failure: Failure = field(hash=False)
    signature: Signature
    has_clue: bool
    specificity: int


def fit(outcome: Outcome, bears: Iterable[tuple[Failure, Signature]]) -> tuple[Fit, ...]:
    """Return how an outcome fits the signatures that it bears."""
    texts = (outcome.message, *outcome.frames)
    fits = []
    for failure, signature in bears:
        if signature.clues:
            has_clue = any(clue.search(text) for clue in signature.clues for text in texts)
        else:
            has_clue = not signature.confirm
        specificity = (
            4 * bool(signature.message)
            + 3 * bool(signature.log)
            + 2 * bool(signature.frames)
            + bool(signature.exception and outcome.exceptions)  # a record may quote the message alone
            + bool(signature.signal)
        )
        fits.append(Fit(failure, signature, has_clue, specificity))
    return tuple(fits)


def choose_answers(fits: Iterable[Fit], clues: Collection[tuple[Example, ...]]) -> list[Fit]:
    """Return what names failures for certain: no weak signature without its clue, only the most specific ones.

    Args:
        fits: The signatures that one event fits.
        clues: Those found elsewhere in the logs.
    """
    certain = [fit for fit in fits if fit.has_clue or fit.signature.clues in clues]
    most = max((fit.specificity for fit in certain), default=0)
    return list({fit.failure.id: fit for fit in certain if fit.specificity == most}.values())


def name_text(text: bytes, failures: Collection[Failure]) -> list[Failure]:
    """Return the failures that a text shows for certain, the most specific first."""
    return _name([], text, Search(failures))


def name_test(outcome: Outcome, failures: Collection[Failure]) -> list[Failure]:
    """Return the failures that a test shows by its own end and by its message and log; the most specific first."""
    text, search = f"{outcome.message}\n{outcome.log}".encode(errors="replace"), Search(failures)
    return _name([fit(outcome, search.match(outcome))], text, search)


def _name(fits: list[tuple[Fit, ...]], text: bytes, search: Search) -> list[Failure]:
    fits += [fit(event.outcome, event.bears) for chain in read_events([text], search) for event in chain]
    named = sorted((one for some in fits for one in choose_answers(some, search.clues)), key=lambda it: -it.specificity)
    return list({one.failure.id: one.failure for one in named}.values())


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

    def add(self, log: str, lines: Sequence[Line]) -> None:
        """Count one more."""
        self.count += 1
        if len(self.places) < _PLACES:
            telling = [line for line in lines if not starts_traceback(line.text)] or lines
            shown = [(line.number, line.printed.rstrip()) for line in telling]
            if len(shown) > _LINES:
                shown = [*shown[: _LINES // 2], *shown[-_LINES // 2 :]]
            self.places.append(LogPosition(log, tuple(shown)))


#: How often and where something happened that fits these signatures.
_Seen = dict[tuple[Fit, ...], LogFinding]


class Diagnosis:
    """Reads logs block by block, and counts what they show.

    Attributes:
        documented: After the end: the documented failures, the most specifically identified first, then in the
            logs' order.
        possible: After the end: those of which the logs show no more than other programs produce too.
        unknown: After the end: what was seen and is not documented, in the logs' order.
        left_out: How many more unknown events there are: of kinds beyond the first hundred, and exit statuses and
            errors without a class that others explain.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.failures = tuple(catalogue.values())
        self.search = Search(self.failures)
        self.documented: list[LogFinding] = []
        self.possible: list[LogFinding] = []
        self.unknown: list[LogFinding] = []
        self.left_out = 0
        self._logs: list[str] = []
        # By the signatures that the events of a chain fit: at the end of all logs, their clues decide.
        self._seen: dict[tuple[tuple[Fit, ...], ...], _Seen] = {}
        self._unknown: dict[str, LogFinding] = {}
        self._minor: dict[str, LogFinding] = {}
        self._signals: set[str | None] = set(STOPPING) | {None}  # that say nothing new

    def read(self, log: str, blocks: Iterable[bytes]) -> None:
        """Read one log, given as blocks of whole lines."""
        self._logs.append(log)
        for chain in read_events(blocks, self.search):
            fitting = [(fit(event.outcome, event.bears), event) for event in chain]
            self._signals |= {event.outcome.signal for fits, event in fitting if fits or not event.minor}
            if different := tuple(dict.fromkeys(fits for fits, _ in fitting if fits)):
                seen = self._seen.setdefault(different, {fits: LogFinding("") for fits in different})
                for fits, event in fitting:
                    if fits:
                        seen[fits].add(log, event.lines)
            else:
                self._add_unknown(log, chain)

    def end(self) -> None:
        """End the last log: only now it is known which clues there are."""
        documented: dict[str, LogFinding] = {}
        possible: dict[str, LogFinding] = {}
        for seen in self._seen.values():
            named = {fits: choose_answers(fits, self.search.clues) for fits in seen}
            certain = any(named.values())
            for fits, times in seen.items():
                self._add_failures(documented if certain else possible, named[fits] if certain else fits, times)
        self.documented = sorted(documented.values(), key=lambda finding: -finding.specificity)
        self.possible = [finding for name, finding in possible.items() if name not in documented]
        explained = bool(self._seen or self._unknown)
        minor = [one for one in self._minor.values() if not explained or one.signal not in self._signals]
        self.left_out += sum(one.count for one in self._minor.values()) - sum(one.count for one in minor)
        self.unknown = sorted([*self._unknown.values(), *minor], key=lambda one: self._order(one.places[0]))

    def has_read(self, log: str) -> bool:
        """Return whether a log was read for its events."""
        return log in self._logs

    @property
    def has_undocumented(self) -> bool:
        """Whether an exception or a crash was seen that no failure of the catalogue explains."""
        return bool(self._unknown)

    def _add_unknown(self, log: str, chain: Chain) -> None:
        unknown = self._minor if all(event.minor for event in chain) else self._unknown
        what, first = chain[-1].headline, chain[0].headline
        what = (what if what == first else f"{what}, after {first}")[:_LONGEST]
        key = _NUMBER.sub("0", what)
        if key in unknown or len(unknown) < _UNKNOWN:
            unknown.setdefault(key, LogFinding(what, signal=chain[-1].outcome.signal)).add(log, chain[-1].lines)
        else:
            self.left_out += 1

    def _add_failures(self, findings: dict[str, LogFinding], fits: Sequence[Fit], times: LogFinding) -> None:
        """Add what was seen some times to the findings of the failures that it fits."""
        for name in dict.fromkeys(fit.failure.id for fit in fits):
            same = [fit for fit in fits if fit.failure.id == name]
            finding = findings.setdefault(name, LogFinding(same[0].failure.title, same[0].failure))
            finding.specificity = max(finding.specificity, *(fit.specificity for fit in same))
            confirm = (*finding.confirm, *(fit.signature.confirm for fit in same))
            finding.confirm = tuple(dict.fromkeys(filter(None, confirm)))
            finding.count += times.count
            finding.places = sorted((*finding.places, *times.places), key=self._order)[:_PLACES]

    def _order(self, place: LogPosition) -> tuple[int, int]:
        return self._logs.index(place.log), place.number
