"""Enter a user's real run: wait for TRL's trainer, and watch it train; nothing is changed."""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from typing import Any

from pytest_rlregress.commands.rehearse import events

NOT_VERL = "--as-is watches TRL's GRPOTrainer only yet, and not verl: rehearse it without --as-is"


def enter_any_trainer(module: Any) -> None:
    """Write which other trainer trains: it is neither watched nor ended."""
    train = module.Trainer.train

    @functools.wraps(train)
    def train_and_say(self: Any, *arguments: Any, **named: Any) -> Any:
        if not getattr(self, "is_rehearsed", False):
            with suppress(Exception):
                events.note_unrehearsed(type(self).__name__, "only TRL's GRPOTrainer is; it trains to its own end")
        return train(self, *arguments, **named)

    module.Trainer.train = train_and_say


def enter_verl(module: Any) -> None:
    """End a command of verl's before it begins, which would train to its end unwatched; others may import verl."""
    command = sys.orig_argv
    if any(is_verl(command[at : at + 2]) for at in range(1, len(command))):
        with suppress(OSError):
            events.write("foreign", why=NOT_VERL)
        raise SystemExit(f"rlregress rehearse: {NOT_VERL}")


def is_verl(words: list[str]) -> bool:
    """Return whether these two words of a command start a trainer of verl's."""
    return words[:1] == ["-m"] and words[-1].startswith("verl.trainer.")


def enter_trainer(module: Any) -> None:
    """Watch each ``GRPOTrainer``, subclasses too, while it trains."""
    from pytest_rlregress.commands.rehearse import as_is

    cls = module.GRPOTrainer
    train = cls.train

    @functools.wraps(train)
    def train_watched(self: Any, *arguments: Any, **named: Any) -> Any:
        as_is.begin(self)
        try:
            result = train(self, *arguments, **named)
        except Exception as error:
            as_is.note_failure(self, error)
            raise
        as_is.note_end(self)
        return result

    cls.train = train_watched
