"""Documented failures against what happened in a log, by the signatures and the judge that tests have."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_rlregress.catalogue import Failure, Signature
from pytest_rlregress.diagnose.events import Assembler, Chain, Event
from pytest_rlregress.diagnose.reader import near
from pytest_rlregress.diagnose.search import Search, parts, worded
from pytest_rlregress.diagnose.shapes import QUIET, tells, unwrapped
from pytest_rlregress.logs.lines import Line
from pytest_rlregress.verdicts import Outcome, matches


@dataclass(frozen=True)
class Named:
    """A documented failure that something bears, and how much of a signature says so."""

    failure: Failure
    weight: int


def weight(signature: Signature) -> int:
    """How specific a signature is: a sentence says more than a class or a signal alone."""
    return (
        4 * bool(signature.message)
        + 3 * bool(signature.log)
        + 2 * bool(signature.frames)
        + bool(signature.exception)
        + bool(signature.signal)
    )


def name_outcome(outcome: Outcome, failures: Iterable[Failure]) -> list[Named]:
    """The failures whose signatures an outcome bears, only the most specific ones."""
    return _most_specific(failures, lambda signature: matches(signature, outcome))


def name_test(outcome: Outcome, failures: Collection[Failure]) -> list[Failure]:
    """The failures that a test shows by its own end and by its message and log; the most specific first."""
    named = name_outcome(outcome, failures)
    text = f"{outcome.message}\n{outcome.log}".encode(errors="replace")
    for chain in read(near([text], Search(failures)), failures):
        named += [one for event in chain for one in name_event(event, failures)]
    named.sort(key=lambda one: -one.weight)
    return list({one.failure.id: one.failure for one in named}.values())


def name_event(event: Event, failures: Iterable[Failure]) -> list[Named]:
    """The failures that an event of a log shows, only the most specific ones."""
    if event.bare:
        return _most_specific(failures, lambda signature: worded(signature) and _says(event.lines, signature))
    outcomes = [replace(event.outcome, message=message) for message in event.messages] or [event.outcome]
    return _most_specific(failures, lambda signature: any(matches(signature, outcome) for outcome in outcomes))


def _most_specific(failures: Iterable[Failure], bears: Callable[[Signature], bool]) -> list[Named]:
    named = [
        Named(failure, max(weights))
        for failure in failures
        if (weights := [weight(signature) for signature in failure.signatures if bears(signature)])
    ]
    most = max((one.weight for one in named), default=0)
    return [one for one in named if one.weight == most]


def assembler(failures: Iterable[Failure]) -> Assembler:
    """An assembler that knows the wordings of these failures."""
    wordings = [signature for failure in failures for signature in failure.signatures if worded(signature)]
    hint = re.compile("|".join(re.escape(part) for part in {part for one in wordings for part in parts(one)}) or "(?!)")

    return Assembler(
        lambda line: hint.search(line.text) is not None, lambda lines: any(_says(lines, one) for one in wordings)
    )


def read(lines: Iterable[Line], failures: Iterable[Failure]) -> Iterator[Chain]:
    """The events of a log, each chain of exceptions as one."""
    assembling = assembler(failures)
    for line in lines:
        yield from assembling.feed(line)
    yield from assembling.end()


def _says(lines: Sequence[Line], signature: Signature) -> bool:
    """Whether a wording is what a line, and those it is wrapped over, says: not something that it mentions."""
    first, *rest = lines
    indent = first.text[: len(first.text) - len(first.text.lstrip())]
    if signature.message is None or first.level in QUIET or not tells(indent, first.level):
        return False
    prefix = first.printed.removesuffix(first.text)
    for text in unwrapped([first.text.rstrip(), *(line.text.strip() for line in rest)]):
        found = signature.message.search(text)
        if found and found.start() < len(first.text) and tells(text[: found.start()], first.level):
            return True
        found = signature.message.search(prefix + text)
        if found and found.start() < len(prefix):
            return True
    return False
