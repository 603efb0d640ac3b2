"""Read files of metrics that are no logs: trainer states of transformers, TensorBoard's events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.diagnose.metrics.series import Run
from pytest_rlregress.commands.diagnose.metrics.text import row_of

# The names under which a folder has what trainers write; the content decides what a file is.
_STATE = "trainer_state.json"
_IN_FOLDERS = ("*tfevents*", _STATE, "*.jsonl")
_HEAD_BYTES = 4096


class MetricFileError(ValueError):
    """A file of metrics that cannot be read; the message names it and says why."""


def kind_of(path: Path) -> str | None:
    """Return "tensorboard" or "trainer state" for a file of metrics that is no text of lines, by its content.

    Raises:
        OSError: It cannot be opened.
    """
    if not path.is_file():  # a pipe is read once, by who reads logs
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if b"brain.Event:" in head[:64]:
        return "tensorboard"
    return "trainer state" if head.lstrip()[:1] == b"{" and b'"log_history"' in head else None


def read(path: Path, kind: str) -> Run:
    """Read a file of metrics of a kind that ``kind_of`` knows.

    Raises:
        MetricFileError: It is damaged, or what reads it is not installed.
    """
    run = Run(str(path))
    for items in (_tensorboard if kind == "tensorboard" else _trainer_state)(path):
        step, values = row_of(items)
        if values:
            run.add(step, values)
    return run


def of(path: Path) -> list[Path]:
    """Return a path, or of a folder the files of metrics in it and below; itself, where there are none.

    Of a run's checkpoints, each of which has all that came before, the last one counts.
    """
    if not path.is_dir():
        return [path]
    found = sorted({file for pattern in _IN_FOLDERS for file in path.rglob(pattern) if file.is_file()})
    last: dict[Path, Path] = {}
    for file in (file for file in found if file.name == _STATE):
        run = file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent
        last[run] = max(last.get(run, file), file, key=_checkpoint)
    return [file for file in found if file.name != _STATE or file in last.values()] or [path]


def _checkpoint(path: Path) -> float:
    """Return the number of the checkpoint that has a trainer state; one outside of any is of the end."""
    number = path.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else float("inf")


def _trainer_state(path: Path) -> Iterator[list[tuple[str, Any]]]:
    try:
        history = json.loads(path.read_bytes())["log_history"]
        yield from (list(entry.items()) for entry in history)
    except (ValueError, TypeError, AttributeError) as error:
        raise MetricFileError(f"{path}: no trainer state of transformers' ({error})") from None


def _tensorboard(path: Path) -> Iterator[list[tuple[str, Any]]]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise MetricFileError(
            f"{path}: events of TensorBoard, whose reader is not installed: pip install tensorboard"
        ) from None
    # One event has one number: those of a step are put together, as the steps of a run may only grow.
    step: int | None = None
    items: list[tuple[str, Any]] = []
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            number = make_ndarray(value.tensor) if value.HasField("tensor") else None
            if number is None or number.size != 1 or number.dtype.kind not in "fiu":
                continue
            if event.step != step and items:
                yield [("step", step), *items]
                items = []
            step = event.step
            items.append((value.tag, float(number.reshape(-1)[0])))
    if items:
        yield [("step", step), *items]
