"""Read what trainers write each step: verl's console lines, TRL's and transformers' dicts, JSON lines, transformers'
trainer states, TensorBoard's events."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_rlregress.commands.diagnose.metrics.series import STEPS, Run, known

_NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
# numpy 2 prints its own class around a number.
_VERL_LINE = re.compile(rb"step:(\d{1,18}) - ([^\r\n]+)")
_VERL_METRIC = re.compile(rb"([\w/.@-]+):(?:np\.\w+\()?(" + _NUMBER + rb")")
# transformers prints numbers as texts.
_DICT = re.compile(rb"\{'[^{}\r\n]*\}")
_DICT_METRIC = re.compile(rb"'([^'\r\n]+)': '?(" + _NUMBER + rb"|None)\b")
_JSON_LINE = re.compile(rb'\{"[^\r\n]*\}')
_SETTING = re.compile(rb"'(train_batch_size|ppo_mini_batch_size|ppo_epochs)': (\d+)")
#: A number from which on it isn't a step's: it does not fit into an array.
_NO_STEP = 2**63
#: A line that is longer is none of a trainer's.
_LONGEST = 100_000
# The names under which a folder has what trainers write; the content decides what a file is.
_STATE = "trainer_state.json"
_IN_FOLDERS = ("*tfevents*", _STATE, "*.jsonl")
_HEAD_BYTES = 4096


class MetricText:
    """Takes a log block by block, and keeps the metrics in it as a run."""

    def __init__(self, log: str) -> None:
        self.run = Run(log)

    def feed(self, block: bytes) -> None:
        """Take a block of whole lines. Plain texts are looked for first: most blocks of a log have none."""
        if self.run.full:
            return
        if b"_size': " in block:
            for key, value in _SETTING.findall(block):
                self.run.settings.setdefault(key.decode(), set()).add(float(value))
        found = []
        if b"step:" in block:
            found += [(line.start(), _verl_row(line)) for line in _VERL_LINE.finditer(block)]
        if b"{'" in block:
            dicts = (line for line in _DICT.finditer(block) if b"'epoch': " in line[0])  # others are settings
            found += [(line.start(), row_of(_dict_items(line[0]))) for line in dicts]
        if b'step"' in block:
            lines = (line for line in _JSON_LINE.finditer(block) if b'step"' in line[0])
            found += [(line.start(), row_of(_json_items(line[0]))) for line in lines]
        for _, (step, values) in sorted(found, key=lambda one: one[0]):
            if values:
                self.run.add(step, values)


def row_of(items: Iterable[tuple[str, Any]]) -> tuple[int | None, dict[str, float]]:
    """Return the step, if it is there, and the metrics that are judged, of what was logged at once."""
    steps: dict[str, int] = {}
    values = {}
    for printed, value in items:
        name = printed.removeprefix("train/")
        if name in STEPS and (number := as_number(value)) is not None and abs(number) < _NO_STEP:
            steps[name] = int(number)
        elif (judged := known(printed)) and (number := as_number(value)) is not None:
            values[judged] = number
    return next((steps[name] for name in STEPS if name in steps), None), values


def as_number(value: Any) -> float | None:
    """Return a logged value as a number, NaN for the null or the text that JSON writers put there; None for others."""
    if value is None or value == "None":
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _verl_row(line: re.Match[bytes]) -> tuple[int | None, dict[str, float]]:
    pairs = ((name.decode(), value.decode()) for name, value in _VERL_METRIC.findall(line[2][:_LONGEST]))
    return int(line[1]), row_of(pairs)[1]


def _dict_items(text: bytes) -> Iterator[tuple[str, str]]:
    for name, value in _DICT_METRIC.findall(text[:_LONGEST]):
        yield name.decode(errors="replace"), value.decode()


def _json_items(text: bytes) -> Iterable[tuple[str, Any]]:
    """Return the items of an object on one line; verl's file logger has the metrics one level deeper."""
    try:
        read = json.loads(text) if len(text) <= _LONGEST else None
    except ValueError:
        return ()
    if not isinstance(read, Mapping):
        return ()
    data = read.get("data")
    return [*read.items(), *(data.items() if isinstance(data, Mapping) else ())]


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
