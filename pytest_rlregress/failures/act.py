"""Where the failing act of a test begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: Whether the test that runs in this process has begun its act.
_begun = False


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
