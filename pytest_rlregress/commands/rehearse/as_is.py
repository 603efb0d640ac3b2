"""Around a trainer in a user's real run: it is watched on rank 0, and ends after a number of steps by its own means.

Nothing here raises. What goes wrong is written down, and told at the end.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from pytest_rlregress.commands.rehearse import events, guard


class StopAfter(TrainerCallback):  # type: ignore[misc]
    """Asks the trainer to stop after so many steps; on every rank, which then stop together."""

    def __init__(self, steps: int) -> None:
        """Count from here on: a run that resumes has steps behind it."""
        self.steps, self.done = steps, 0

    def on_train_begin(self, *arguments: Any, **_: Any) -> None:
        """Count from 0 again."""
        self.done = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop after the last step."""
        self.done += 1
        if self.done >= self.steps:
            control.should_training_stop = True


def begin(trainer: Any) -> None:
    """Have a trainer stop after the steps asked for; on rank 0 watch it."""
    try:
        if getattr(trainer, "is_rehearsed", False):  # it trains again
            return
        trainer.is_rehearsed = True
        trainer.add_callback(StopAfter(int(os.environ[events.STEPS_VARIABLE])))
    except Exception as error:
        guard.note("the end after the last step", error)
    try:
        if trainer.is_world_process_zero():
            _watch(trainer)
    except Exception as error:
        guard.note("the beginning", error)


def _watch(trainer: Any) -> None:
    from pytest_rlregress.commands.rehearse.as_is_watch import AsIsRecorder

    processes = trainer.accelerator.num_processes
    events.write("as_is", uses_engine=bool(trainer.use_vllm), processes=processes)
    if processes > 1:
        own = f"rank 0 writes, and sees its own rows of {processes} processes'"
        events.note_unrehearsed("the other processes' rows", own)
    AsIsRecorder(trainer).observe()


def note_failure(trainer: Any, error: Exception) -> None:
    """Write that training ended with an error."""
    try:
        if trainer.is_world_process_zero():
            events.note_failure(trainer.state.global_step + 1, error)
    except Exception as own:
        guard.note("the end of the training", own)


def note_end(trainer: Any) -> None:
    """Write that training came to its end."""
    try:
        if trainer.is_world_process_zero():
            events.write("trained", steps=trainer.state.global_step)
    except Exception as own:
        guard.note("the end of the training", own)
