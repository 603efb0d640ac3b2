"""Where the failing act of a test begins, and whether the fault happened that a test injects."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

#: Whether the test that runs in this process has begun its act.
_begun = False


class DidNotAct(Exception):
    """A test came to its end without its act, or the fault that it injects did not happen: its outcome says nothing."""


def witness(happened: object, fault: str) -> None:
    """Go on where the fault that a test injects happened.

    Without it a guard would hold against nothing.

    Raises:
        DidNotAct: It did not, which is a mistake of the test and no verdict.
    """
    if not happened:
        raise DidNotAct(f"the fault that it injects did not happen: {fault}")


@contextmanager
def act() -> Iterator[None]:
    """Mark the failing act of a test: ``with act(): ...``.

    What a test does before it is preparation. An exception there is no verdict about the failure: the installed release
    can't be driven this way, and the test is ``unavailable``.
    """
    global _begun
    _begun = True
    yield


def forget_act() -> None:
    """Forget the act of the test before."""
    global _begun
    _begun = False


def has_begun() -> bool:
    """Return whether the running test has begun its act."""
    return _begun


def marks_act(function: Any) -> bool:
    """Return whether the body of a test function has ``with act():``."""
    given = getattr(function, "hypothesis", None)  # of a test that hypothesis calls with examples
    body = inspect.unwrap(given.inner_test if given else function)
    names = _names(body.__code__) if inspect.isfunction(body) else ()
    return any(body.__globals__.get(name) is act for name in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
