"""Name the documented failures that an event or an outcome shows, by the signatures that judge tests too."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_rlregress.catalogue import Failure, Signature
from pytest_rlregress.diagnose.events import Assembler, Chain, Event
from pytest_rlregress.diagnose.patterns import QUIET_LEVELS, is_report, joined_lines
from pytest_rlregress.diagnose.reader import relevant_lines
from pytest_rlregress.diagnose.search import Search, is_message_only, literal_parts
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.verdicts import Outcome, matches


@dataclass(frozen=True)
class NamedFailure:
    """A documented failure, and how specific the signature is that named it."""

    failure: Failure
    specificity: int


def specificity(signature: Signature) -> int:
    """Return how specific a signature is: a sentence says more than a class or a signal alone."""
    return (
        4 * bool(signature.message)
        + 3 * bool(signature.log)
        + 2 * bool(signature.frames)
        + bool(signature.exception)
        + bool(signature.signal)
    )


def name_outcome(outcome: Outcome, failures: Iterable[Failure]) -> list[NamedFailure]:
    """Return the failures whose signatures match an outcome, only the most specific ones."""
    return _most_specific(failures, lambda signature: matches(signature, outcome))


def name_test(outcome: Outcome, failures: Collection[Failure]) -> list[Failure]:
    """Return the failures that a test shows by its own end and by its message and log; the most specific first."""
    named = name_outcome(outcome, failures)
    text = f"{outcome.message}\n{outcome.log}".encode(errors="replace")
    for chain in read(relevant_lines([text], Search(failures)), failures):
        named += [one for event in chain for one in name_event(event, failures)]
    named.sort(key=lambda one: -one.specificity)
    return list({one.failure.id: one.failure for one in named}.values())


def name_event(event: Event, failures: Iterable[Failure]) -> list[NamedFailure]:
    """Return the failures that an event of a log shows, only the most specific ones."""
    if event.message_only:
        return _most_specific(
            failures, lambda signature: is_message_only(signature) and _reports(event.lines, signature)
        )
    outcomes = [replace(event.outcome, message=message) for message in event.messages] or [event.outcome]
    return _most_specific(failures, lambda signature: any(matches(signature, outcome) for outcome in outcomes))


def _most_specific(failures: Iterable[Failure], matches_it: Callable[[Signature], bool]) -> list[NamedFailure]:
    named = [
        NamedFailure(failure, max(found))
        for failure in failures
        if (found := [specificity(signature) for signature in failure.signatures if matches_it(signature)])
    ]
    most = max((one.specificity for one in named), default=0)
    return [one for one in named if one.specificity == most]


def read(lines: Iterable[Line], failures: Iterable[Failure]) -> Iterator[Chain]:
    """Read the events of a log, each chain of exceptions as one."""
    messages = [signature for failure in failures for signature in failure.signatures if is_message_only(signature)]
    parts = {part for one in messages for part in literal_parts(one)}
    hint = re.compile("|".join(map(re.escape, parts)) or "(?!)")
    assembler = Assembler(
        lambda line: hint.search(line.text) is not None, lambda lines: any(_reports(lines, one) for one in messages)
    )
    for line in lines:
        yield from assembler.feed(line)
    yield from assembler.end()


def _reports(lines: Sequence[Line], signature: Signature) -> bool:
    """Return whether a line, and those it is wrapped over, reports a signature's message, and not only mentions it."""
    first, *rest = lines
    indent = first.text[: len(first.text) - len(first.text.lstrip())]
    if signature.message is None or first.level in QUIET_LEVELS or not is_report(indent, first.level):
        return False
    prefix = first.printed.removesuffix(first.text)
    for text in joined_lines([first.text.rstrip(), *(line.text.strip() for line in rest)]):
        found = signature.message.search(text)
        if found and found.start() < len(first.text) and is_report(text[: found.start()], first.level):
            return True
        found = signature.message.search(prefix + text)
        if found and found.start() < len(prefix):
            return True
    return False
