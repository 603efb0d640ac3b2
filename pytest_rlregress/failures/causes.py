"""What failed at the root of bad tests, so that one cause is told once, whatever tests saw it. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pytest_rlregress.failures.observations import find_first_line, normalise
from pytest_rlregress.failures.verdicts import Outcome, Verdict

_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?P<place>.+)")
_OWN = ("pytest_rlregress/", "pytest/", "_pytest/", "pluggy/", "hypothesis/")
_IMPORTS = ("ImportError: ", "ModuleNotFoundError: ")


T = TypeVar("T")


@dataclass(frozen=True)
class BadTest(Generic[T]):
    """A bad test, the failure and the side that it is of, and its cause."""

    test: T
    failure: str
    side: str
    cause: str


@dataclass(frozen=True)
class SharedCause(Generic[T]):
    """A cause that tests of several failures or sides saw.

    Attributes:
        word: ``blocked`` where an import inside of the stack failed; ``unavailable`` where both sides of a failure
            failed by it, so that the release can't be driven this way; else "".
    """

    cause: str
    word: str
    tests: tuple[BadTest[T], ...]


def find_cause(outcome: Outcome) -> str:
    """Describe what an exception came from, the same on any machine and night; "" where no installed package raised it.

    As in ``ImportError: cannot import name 'X' from 'transformers' (in verl/utils/model.py:<module>)``.
    """
    if outcome.kind != "failed" or not outcome.exceptions:
        return ""
    places = [found["place"] for frame in outcome.frames if (found := _INSTALLED.match(frame))]
    place = next((one for one in reversed(places) if not one.startswith(_OWN)), "")
    if not place:
        return ""
    raised = outcome.exceptions[0].rpartition(".")[2]
    said = normalise(find_first_line(outcome.message))
    return f"{raised}: {said} (in {place})" if said else f"{raised} (in {place})"


def is_import(cause: str) -> bool:
    """Return whether a cause is an import that failed inside of the stack."""
    return cause.startswith(_IMPORTS)


def find_shared(tests: Iterable[BadTest[T]]) -> list[SharedCause[T]]:
    """Find the causes that tests of more than one failure, or of both sides of one, have in common."""
    groups: dict[str, list[BadTest[T]]] = {}
    for test in tests:
        if test.cause:
            groups.setdefault(test.cause, []).append(test)
    return [
        SharedCause(cause, _choose_word(cause, some), tuple(some))
        for cause, some in groups.items()
        if len({(test.failure, test.side) for test in some}) > 1
    ]


def _choose_word(cause: str, tests: Sequence[BadTest[T]]) -> str:
    if is_import(cause):
        return Verdict.BLOCKED
    sides = [{test.side for test in tests if test.failure == failure} for failure in {test.failure for test in tests}]
    return Verdict.UNAVAILABLE if all(len(some) > 1 for some in sides) else ""
