"""Keep an error of a recorder's own from ending the run that it records."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pytest_rlregress.commands.rehearse import events

R = TypeVar("R")
BROKEN = "the rehearsal itself failed there"


def guarded(method: Callable[..., R]) -> Callable[..., R | None]:
    """Wrap a method of a recorder: an error of its own is written down, and the user's run goes on."""

    @functools.wraps(method)
    def guard(self: Any, *arguments: Any, **named: Any) -> R | None:
        try:
            return method(self, *arguments, **named)
        except Exception as error:
            self.broken.append(f"{method.__name__}: {type(error).__name__}: {error}")
            note(method.__name__, error)
            return None

    return guard


def note(where: str, error: Exception) -> None:
    """Write an error of the rehearsal's own; where nothing can be written, the run goes on all the same."""
    with suppress(OSError):
        events.write("observer", where=where, trace="".join(traceback.format_exception(error)))
