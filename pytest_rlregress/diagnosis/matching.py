"""Put the lines of a log together to events, and name the failures that these show, by the signatures of the tests."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_rlregress.diagnosis.events import Chain, Crashes, Event
from pytest_rlregress.diagnosis.patterns import ERROR_LEVELS, LONGEST, QUIET_LEVELS, is_report
from pytest_rlregress.diagnosis.reader import Search, relevant_lines
from pytest_rlregress.diagnosis.tracebacks import Tracebacks
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.signatures import Example, Signature
from pytest_rlregress.failures.verdicts import Outcome, matches
from pytest_rlregress.logs.lines import Line

_CONTEXT_LINES = 60
# Where hundreds of ranks print one traceback line by line, so many lines of source are passed over between two frames.
_BRIDGED_LINES = 1000


@dataclass(frozen=True)
class Fit:
    """A signature that an event fits.

    Attributes:
        has_clue: Whether the event itself has the clue that a weak one asks for; of a hint never.
        specificity: How specific it is: a sentence says more than a class or a signal alone.
    """

    failure: Failure = field(hash=False)
    signature: Signature
    has_clue: bool
    specificity: int


def fit_outcome(outcome: Outcome, search: Search) -> tuple[Fit, ...]:
    """Return the signatures that an outcome fits."""
    return _fits([outcome], search, lambda signature: matches(signature, outcome))


def fit_event(event: Event, search: Search) -> tuple[Fit, ...]:
    """Return the signatures that an event of a log fits."""
    if event.message_only:
        return _fits([event.outcome], search, lambda signature: _reports(event.lines, signature))
    # Some terminals wrap within words.
    outcomes = [event.outcome, replace(event.outcome, message="".join(event.said))] if event.said else [event.outcome]
    return _fits(outcomes, search, lambda signature: any(matches(signature, outcome) for outcome in outcomes))


def _fits(outcomes: Sequence[Outcome], search: Search, fits: Callable[[Signature], bool]) -> tuple[Fit, ...]:
    texts = [text for one in outcomes for text in (one.message, *one.frames)]

    def has_clue(signature: Signature) -> bool:
        if not signature.clues:
            return not signature.confirm
        return any(clue.search(text) for clue in signature.clues for text in texts)

    candidates = search.candidates("\n".join(one.message for one in outcomes))
    return tuple(
        Fit(one.failure, one.signature, has_clue(one.signature), _specificity(one.signature, outcomes[0]))
        for one in candidates
        if fits(one.signature)
    )


def _specificity(signature: Signature, outcome: Outcome) -> int:
    return (
        4 * bool(signature.message)
        + 3 * bool(signature.log)
        + 2 * bool(signature.frames)
        + bool(signature.exception and outcome.exceptions)  # a record may quote the message alone
        + bool(signature.signal)
    )


def answers(fits: Iterable[Fit], clues: Collection[tuple[Example, ...]]) -> list[Fit]:
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
    return _name([fit_outcome(outcome, search)], text, search)


def _name(fits: list[tuple[Fit, ...]], text: bytes, search: Search) -> list[Failure]:
    chains = list(read(relevant_lines([text], search), search))
    fits += [fit_event(event, search) for chain in chains for event in chain]
    named = sorted((one for some in fits for one in answers(some, search.clues)), key=lambda one: -one.specificity)
    return list({one.failure.id: one.failure for one in named}.values())


class Assembler:
    """Makes chains of events out of the lines of a log.

    Args:
        hinted: Whether a line has a part of a message that is an event by itself.
        is_event: Whether a line, wrapped over those that follow it, is an event by its message alone.
    """

    def __init__(self, hinted: Callable[[Line], bool], is_event: Callable[[tuple[Line, ...]], bool]) -> None:
        self._tracebacks = Tracebacks(hinted, is_event, self._emit)
        self._crashes = Crashes(self._emit)
        self._context: deque[Line] = deque(maxlen=_CONTEXT_LINES)
        self._number = self._seen = 0
        self._waiting: deque[tuple[int, Chain]] = deque()  # for the context that follows

    def feed(self, line: Line) -> Iterator[Chain]:
        """Take a line."""
        passed_over = line.number - self._number - 1
        if passed_over > 0:
            yield from self._end(keeps_named=passed_over <= _BRIDGED_LINES)
        self._number = line.number
        if line.bar:
            return
        self._seen += 1
        self._context.append(line)
        others = self._tracebacks
        if not self._crashes.take(line, others.is_open(line), others.has_message(line)):
            self._tracebacks.take(line)
        while self._waiting and self._waiting[0][0] <= self._seen:
            yield self._with_context(self._waiting.popleft()[1])

    def end(self) -> Iterator[Chain]:
        """End what is open: nothing follows."""
        yield from self._end()

    def _end(self, keeps_named: bool = False) -> Iterator[Chain]:
        self._tracebacks.end(keeps_named)
        self._crashes.end()
        while self._waiting:
            yield self._with_context(self._waiting.popleft()[1])
        self._context.clear()

    def _emit(self, chain: list[Event]) -> None:
        self._waiting.append((self._seen + _CONTEXT_LINES // 2, tuple(chain)))

    def _with_context(self, chain: Chain) -> Chain:
        log = "\n".join(line.printed for line in self._context)
        return tuple(replace(event, outcome=replace(event.outcome, log=log)) for event in chain)


def read(lines: Iterable[Line], search: Search) -> Iterator[Chain]:
    """Read the events of a log, each chain of exceptions as one."""

    def hinted(line: Line) -> bool:
        return any(
            one.signature.is_line or (one.signature.is_quotable and line.level not in QUIET_LEVELS)
            for one in search.candidates(line.text)
        )

    def is_event(lines: Sequence[Line]) -> bool:
        text = "\n".join([lines[0].printed, *(line.text for line in lines)])
        return any(_reports(lines, one.signature) for one in search.candidates(text))

    assembler = Assembler(hinted, is_event)
    for line in lines:
        yield from assembler.feed(line)
    yield from assembler.end()


def _reports(lines: Sequence[Line], signature: Signature) -> bool:
    """Return whether a line, and those it is wrapped over, reports a signature's message, and not only mentions it."""
    first, *rest = lines
    quoted, pattern = not signature.is_line, signature.message
    indent = first.text[: len(first.text) - len(first.text.lstrip())]
    if (
        pattern is None
        or (quoted and not signature.is_quotable)
        or first.level in QUIET_LEVELS
        or not is_report(indent, first.level)
    ):
        return False
    prefix = first.printed.removesuffix(first.text) if first.printed.endswith(first.text) else ""
    said = [first.text.rstrip(), *(line.text.strip() for line in rest)]
    for text in ("\n".join(said)[:LONGEST], "".join(said)[:LONGEST]):  # some terminals wrap within words
        found = pattern.search(text)
        if found and found.start() < len(first.text) and is_report(text[: found.start()], first.level):
            return not quoted or _quotes(text[: found.start()], first)
        found = pattern.search(prefix + text)
        if found and found.start() < len(prefix):
            return not quoted
    return False


def _quotes(lead: str, line: Line) -> bool:
    """Return whether an exception's message without its class stands there as what happened."""
    printed = bool(line.process) and not lead.strip()  # by itself, by a process that a launcher names
    said = printed or line.level in ERROR_LEVELS or re.search(r": ?$", lead) is not None
    return said and not re.search(r"(?:Error|Exception)\b['\"(: ]*$", lead)
