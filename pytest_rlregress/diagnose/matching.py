"""Name the documented failures that an event or an outcome shows, by the signatures that judge tests too."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_rlregress.catalogue import Failure, Signature
from pytest_rlregress.diagnose.assembler import Assembler
from pytest_rlregress.diagnose.events import Chain, Event
from pytest_rlregress.diagnose.patterns import ERROR_LEVELS, QUIET_LEVELS, is_report, joined_lines
from pytest_rlregress.diagnose.reader import relevant_lines
from pytest_rlregress.diagnose.search import Search, is_quotable, is_words_only, literal_parts
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.util.literals import Pattern, literals
from pytest_rlregress.verdicts import Outcome, matches


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


def fit_outcome(outcome: Outcome, failures: Iterable[Failure]) -> tuple[Fit, ...]:
    """Return the signatures that an outcome fits."""
    return _fits(outcome, (outcome.message, outcome.log), failures, lambda signature: matches(signature, outcome))


def fit_event(event: Event, failures: Iterable[Failure]) -> tuple[Fit, ...]:
    """Return the signatures that an event of a log fits."""
    outcome, texts = event.outcome, (event.outcome.message, *event.messages)
    if event.message_only:
        return _fits(outcome, texts, failures, lambda one: _reports(event.lines, one))
    outcomes = [replace(outcome, message=message) for message in event.messages] or [outcome]
    return _fits(outcome, texts, failures, lambda one: any(matches(one, outcome) for outcome in outcomes))


def _fits(
    outcome: Outcome, texts: Iterable[str], failures: Iterable[Failure], fits: Callable[[Signature], bool]
) -> tuple[Fit, ...]:
    def has_clue(one: Signature) -> bool:
        return not one.is_hint and (one.clue is None or any(map(one.clue.search, (*texts, *outcome.frames))))

    return tuple(
        Fit(failure, signature, has_clue(signature), _specificity(signature, outcome))
        for failure in failures
        for signature in failure.signatures
        if fits(signature)
    )


def _specificity(signature: Signature, outcome: Outcome) -> int:
    return (
        4 * bool(signature.message)
        + 3 * bool(signature.log)
        + 2 * bool(signature.frames)
        + bool(signature.exception and outcome.exceptions)  # a record may quote the message alone
        + bool(signature.signal)
    )


def answers(fits: Iterable[Fit], clues: Collection[Pattern]) -> list[Fit]:
    """Return what names failures for certain: no weak signature without its clue, only the most specific ones.

    Args:
        fits: The signatures that one event fits.
        clues: Those found elsewhere in the logs.
    """
    certain = [fit for fit in fits if fit.has_clue or fit.signature.clue in clues]
    most = max((fit.specificity for fit in certain), default=0)
    return list({fit.failure.id: fit for fit in certain if fit.specificity == most}.values())


def name_text(text: bytes, failures: Collection[Failure]) -> list[Failure]:
    """Return the failures that a text shows for certain, the most specific first."""
    return _name([], text, failures)


def name_test(outcome: Outcome, failures: Collection[Failure]) -> list[Failure]:
    """Return the failures that a test shows by its own end and by its message and log; the most specific first."""
    text = f"{outcome.message}\n{outcome.log}".encode(errors="replace")
    return _name([fit_outcome(outcome, failures)], text, failures)


def _name(fits: list[tuple[Fit, ...]], text: bytes, failures: Collection[Failure]) -> list[Failure]:
    search = Search(failures)
    chains = list(read(relevant_lines([text], search), failures))
    fits += [fit_event(event, failures) for chain in chains for event in chain]
    named = sorted((one for some in fits for one in answers(some, search.clues)), key=lambda one: -one.specificity)
    return list({one.failure.id: one.failure for one in named}.values())


def read(lines: Iterable[Line], failures: Iterable[Failure]) -> Iterator[Chain]:
    """Read the events of a log, each chain of exceptions as one."""
    signatures = [signature for failure in failures for signature in failure.signatures]
    alone = [one for one in signatures if is_words_only(one)]
    quoted = [one for one in signatures if is_quotable(one)]
    hint, hint_of_quoted = _hint(alone), _hint(quoted)

    def hinted(line: Line) -> bool:
        if hint.search(line.text):
            return True
        return line.level not in QUIET_LEVELS and hint_of_quoted.search(line.text) is not None

    assembler = Assembler(hinted, lambda lines: any(_reports(lines, one) for one in [*alone, *quoted]))
    for line in lines:
        yield from assembler.feed(line)
    yield from assembler.end()


def _hint(signatures: Iterable[Signature]) -> re.Pattern[str]:
    parts = {part for signature in signatures for part in literal_parts(signature)}
    return re.compile("|".join(map(re.escape, parts)) or "(?!)")


def _reports(lines: Sequence[Line], signature: Signature) -> bool:
    """Return whether a line, and those it is wrapped over, reports a signature's message, and not only mentions it."""
    first, *rest = lines
    quoted = not is_words_only(signature)
    if quoted and not is_quotable(signature):
        return False
    pattern = signature.message or signature.log
    indent = first.text[: len(first.text) - len(first.text.lstrip())]
    if pattern is None or first.level in QUIET_LEVELS or not is_report(indent, first.level):
        return False
    prefix = first.printed.removesuffix(first.text) if first.printed.endswith(first.text) else ""
    for text in joined_lines([first.text.rstrip(), *(line.text.strip() for line in rest)]):
        if not any(literal in prefix + text for literal in literals(pattern)):
            continue  # a pattern takes seconds for long lines without it
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
