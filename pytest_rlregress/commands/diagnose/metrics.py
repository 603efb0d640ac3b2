"""Read what trainers write each step: verl's console lines, TRL's and transformers' dicts, JSON lines, transformers'
trainer states, TensorBoard's events."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_rlregress.diagnosis.reader import LogError

#: Metric -> the names of trainers for it, the most telling first. The first that a run has is the one that is judged.
#: verl's are those of ``trainer/ppo/metric_utils.py`` and ``rollout_corr_helper.py``, TRL's of ``grpo_trainer.py``.
NAMES: dict[str, tuple[str, ...]] = {
    # verl's score is the judge's, its reward what a KL penalty left of it.
    "reward": ("critic/score/mean", "critic/rewards/mean", "reward"),
    "highest reward": ("critic/score/max", "critic/rewards/max"),
    "lowest reward": ("critic/score/min", "critic/rewards/min"),
    "spread of rewards": ("reward_std",),
    "groups without spread": ("frac_reward_zero_std",),
    "mean advantage": ("critic/advantages/mean",),
    "highest advantage": ("critic/advantages/max",),
    "lowest advantage": ("critic/advantages/min",),
    "aborted": ("response/aborted_ratio",),
    "gradient norm": ("actor/grad_norm", "grad_norm"),
    "entropy": ("actor/entropy", "actor/entropy_loss", "entropy"),
    "clip fraction": ("actor/pg_clipfrac", "clip_ratio/region_mean", "clip_ratio"),
    "tool calls": ("tool_call_counts/max", "tools/call_frequency"),
    "cut short": ("response_length/clip_ratio", "completions/clipped_ratio"),
    "shortest completion": ("response_length/min", "completions/min_length"),
    "longest completion": ("response_length/max", "completions/max_length"),
    "importance ratio": ("sampling/importance_sampling_ratio/mean", "rollout_corr/rollout_is_mean"),
    "policy's own divergence": ("actor/ppo_kl", "actor/kl_loss", "kl"),
    # Between the engine's log-probabilities and the trainer's. The last names are slime's and those of verl 0.6.
    "gap": (
        "sampling/sampling_logp_difference/mean",
        "training/rollout_probs_diff_mean",
        "rollout_corr/log_ppl_abs_diff",
        "rollout_corr/k3_kl",
        "train_rollout_logprob_abs_diff",
        "mismatch/mismatch_log_ppl_abs_diff",
        "mismatch/mismatch_k3_kl",
    ),
}
_JUDGED = {name for names in NAMES.values() for name in names}
# Where wandb and TensorBoard have a step, the trainer's before the logger's.
_STEPS = ("global_step", "training/global_step", "step", "_step")
# What other trainers' names for the same have in them.
_LIKE_A_METRIC = re.compile(
    r"reward|score|(?:^|[/_])kl|ratio|log_?prob|logp|grad_norm|entropy|clip|advantage|prob_error"
)
_MOST_NAMES = 50
_STEP_COLUMN = re.compile(rb"(?:[^\n]*,)?[\"']?(?:train/)?(?:global_|_)?step[\"']?\s*(?:,|$)", re.IGNORECASE)
#: How many steps are kept of a log: no run of a trainer for LLMs has logged as many.
MOST_STEPS = 20_000
# From this number on it isn't a step.
_NO_STEP = 2**63

_NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
_VERL_LINE = re.compile(rb"step:(\d{1,18}) - ([^\r\n]+)")
_VERL_METRIC = re.compile(rb"([\w/.@-]+):(?:np\.\w+\()?(" + _NUMBER + rb")")  # numpy 2 prints its own class around it
_DICT = re.compile(rb"\{'[^{}\r\n]*\}")
_DICT_METRIC = re.compile(rb"'([^'\r\n]+)': '?(" + _NUMBER + rb"|None)\b")  # transformers prints numbers as texts
_JSON_LINE = re.compile(rb'\{"[^\r\n]*\}')
_SETTING = re.compile(rb"'(train_batch_size|ppo_mini_batch_size|ppo_epochs)': (\d+)")
_LONGEST = 100_000  # of a trainer's line
# The names under which a folder has what trainers write; the content decides what a file is.
_STATE = "trainer_state.json"
_IN_FOLDERS = ("*tfevents*", _STATE, "*.jsonl", "*.csv")


@dataclass(frozen=True)
class Series:
    """A metric, step by step.

    Attributes:
        name: As trainers print it.
        by_step: In the order of the log; NaN where something else than a number was logged.
    """

    name: str
    by_step: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return how many steps it has."""
        return len(self.by_step)

    @property
    def steps(self) -> list[int]:
        """The steps."""
        return list(self.by_step)

    @property
    def values(self) -> list[float]:
        """The values."""
        return list(self.by_step.values())

    def where(self, test: Callable[[int, float], bool]) -> Series:
        """Return the part of it whose step and value pass a test."""
        return Series(self.name, {step: value for step, value in self.by_step.items() if test(step, value)})

    def numbers(self) -> Series:
        """Return the part that is finite: a metric may be undefined at a step."""
        return self.where(lambda _, value: math.isfinite(value))

    def after(self, step: int) -> Series:
        """Return the part behind a step."""
        return self.where(lambda at, _: at > step)

    def is_always(self, wanted: float) -> bool:
        """Return whether there are values, and all are this one."""
        return set(self.values) == {wanted}


@dataclass
class Run:
    """A run's metrics, as one log has them.

    Attributes:
        log: Its name.
        numbered: Whether the trainer wrote the steps' numbers; else they are counted as they come.
        settings: Numbers of the trainer's configuration that it printed, by key; several parts may have one key.
        steps: Their numbers, in the order of the log.
        unread: Names that look like metrics, and are those of no trainer that is known here.
    """

    log: str
    numbered: bool = True
    settings: dict[str, set[float]] = field(default_factory=dict)
    steps: dict[int, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)
    _latest: int | None = None
    _begun: int = 0  # steps, each again where the log goes back to it
    _series: dict[str, Series] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first step in the log."""
        return next(iter(self.steps))

    @property
    def last(self) -> int:
        """The last step in the log."""
        return next(reversed(self.steps))

    def add(self, step: int | None, values: Mapping[str, float]) -> None:
        """Add the values of a step; of two that one step has, the first counts."""
        if not self.steps:
            self.numbered = step is not None
        elif self.numbered != (step is not None):  # of another writer: the two would mix
            return
        if step is None:
            step = len(self.steps) + 1
        if step != self._latest:
            if self._begun >= MOST_STEPS:
                return
            self._latest, self._begun = step, self._begun + 1
        self.steps[step] = None
        for name, value in values.items():
            self._series.setdefault(name, Series(name)).by_step.setdefault(step, value)

    def get(self, metric: str) -> Series:
        """Return the series of a metric of ``NAMES``, empty where the run has none."""
        return next((self._series[name] for name in NAMES[metric] if name in self._series), Series(metric))

    def gaps(self) -> list[Series]:
        """Return every series of a gap between engine and trainer, those values that are numbers."""
        found = [self._series[name].numbers() for name in NAMES["gap"] if name in self._series]
        return [gap for gap in found if gap]

    def feed(self, block: bytes) -> None:
        """Read the metrics in a block of whole lines."""
        if self._begun >= MOST_STEPS:
            return
        if b"_size': " in block:
            for key, value in _SETTING.findall(block):
                self.settings.setdefault(key.decode(), set()).add(float(value))
        found = [
            (line.start(), items(line))
            for text, pattern, items in _WRITERS
            if text in block
            for line in pattern.finditer(block)
        ]
        for _, row in sorted(found, key=lambda one: one[0]):
            self.add_row(row)

    def add_row(self, items: Iterable[tuple[str, Any]]) -> None:
        """Add what was logged at once, if metrics that are judged are among it: names and values, the step's too."""
        steps: dict[str, int] = {}
        values = {}
        for printed, value in items:
            name, number = printed.removeprefix("train/"), _as_number(value)  # transformers puts it before each name
            if number is None:
                continue
            if name in _STEPS and abs(number) < _NO_STEP:
                steps[name] = int(number)
            elif name in _JUDGED:
                values[name] = number
            elif _LIKE_A_METRIC.search(name) and len(self.unread) < _MOST_NAMES:
                self.unread[name] = None
        if values:
            self.add(next((steps[name] for name in _STEPS if name in steps), None), values)


def _as_number(value: Any) -> float | None:
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


def _verl_items(line: re.Match[bytes]) -> Iterator[tuple[str, str]]:
    # The step that counts is the one before the metrics, whatever verl logs beside them.
    yield _STEPS[0], line[1].decode()
    for metric, value in _VERL_METRIC.findall(line[2][:_LONGEST]):
        if (name := metric.decode()) in _JUDGED or _LIKE_A_METRIC.search(name):
            yield name, value.decode()


def _dict_items(line: re.Match[bytes]) -> Iterator[tuple[str, str]]:
    if b"'epoch': " in line[0]:  # others are settings
        for name, value in _DICT_METRIC.findall(line[0][:_LONGEST]):
            yield name.decode(errors="replace"), value.decode()


def _json_items(line: re.Match[bytes]) -> Iterator[tuple[str, Any]]:
    """Yield the items of an object on one line; verl's file logger has the metrics one level deeper."""
    if b'step"' in line[0] and len(line[0]) <= _LONGEST:
        with suppress(ValueError):
            read = json.loads(line[0])
            yield from read.items()
            if isinstance(data := read.get("data"), Mapping):
                yield from data.items()


#: Each writer's lines: a text on all of them, as most blocks have none; what they look like; what is in one.
_WRITERS: tuple[tuple[bytes, re.Pattern[bytes], Callable[[re.Match[bytes]], Iterator[tuple[str, Any]]]], ...] = (
    (b"step:", _VERL_LINE, _verl_items),
    (b"{'", _DICT, _dict_items),
    (b'step"', _JSON_LINE, _json_items),
)


def read_file(path: Path) -> list[Run] | None:
    """Read TensorBoard's events, a trainer state or a table, known by their content; None for any other file, as a log.

    A table is what wandb exports as CSV: it may have several runs, each in columns that begin with its name.

    Raises:
        LogError: It is damaged, or its reader isn't installed.
        OSError: It cannot be opened.
    """
    if not path.is_file():  # a pipe is read once, by who reads logs
        return None
    with path.open("rb") as file:
        head = file.read(4096)
    if b"brain.Event:" in head[:64]:
        rows = _tensorboard(path)
    elif head.lstrip()[:1] == b"{" and b'"log_history"' in head:
        rows = _trainer_state(path)
    elif b"," in (header := head.removeprefix(codecs.BOM_UTF8).partition(b"\n")[0]) and _STEP_COLUMN.match(header):
        return _read_table(path)
    else:
        return None
    run = Run(str(path))
    for items in rows:
        run.add_row(items)
    return [run]


def _read_table(path: Path) -> list[Run]:
    """Read a CSV with a column of steps; wandb names its columns ``RUN - METRIC``, and adds __MIN and __MAX of each."""
    runs: dict[str, Run] = {}
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            cells = {name: text for name, text in row.items() if isinstance(name, str) and isinstance(text, str)}
            steps = [
                (name.lower(), text) for name, text in cells.items() if name.lower().removeprefix("train/") in _STEPS
            ]
            values: dict[str, list[tuple[str, str]]] = {}
            for name, text in cells.items():
                named, _, metric = name.rpartition(" - ")
                if text.strip() and not metric.endswith(("__MIN", "__MAX")) and name.lower() not in _STEPS:
                    values.setdefault(named, []).append((metric, text))
            for named, items in values.items():
                run = runs.setdefault(named, Run(f"{path}, {named}" if named else str(path)))
                run.add_row([*steps, *items])
    return [*runs.values()] or [Run(str(path))]


def list_files(path: Path) -> list[Path]:
    """Return a path, or of a folder the files of metrics in it and below.

    Of a run's checkpoints, each of which has all that came before, the last one counts.

    Raises:
        LogError: A folder has none.
    """
    if not os.path.isdir(path):  # where it cannot be looked at, reading it says why
        return [path]
    found = sorted({file for pattern in _IN_FOLDERS for file in path.rglob(pattern) if os.path.isfile(file)})
    last = {}
    for file in sorted((file for file in found if file.name == _STATE), key=_number_of_checkpoint):
        last[file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent] = file
    files = [file for file in found if file.name != _STATE or file in last.values()]
    if not files:
        kinds = ", ".join(_IN_FOLDERS)
        raise LogError(f"{path}: a folder without files of metrics ({kinds}), so nothing was read: name the logs in it")
    return files


def _number_of_checkpoint(state: Path) -> float:
    number = state.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() else math.inf  # outside of any it is of the end


def _trainer_state(path: Path) -> Iterator[list[tuple[str, Any]]]:
    try:
        history = json.loads(path.read_bytes())["log_history"]
        yield from (list(entry.items()) for entry in history)
    except (ValueError, TypeError, AttributeError) as error:
        raise LogError(f"{path}: no trainer state of transformers' ({error})") from None


def _tensorboard(path: Path) -> Iterator[list[tuple[str, Any]]]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise LogError(
            f"{path}: events of TensorBoard, whose reader is not installed: pip install tensorboard"
        ) from None
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            number = make_ndarray(value.tensor) if value.HasField("tensor") else None
            if number is not None and number.size == 1 and number.dtype.kind in "fiu":
                yield [("step", event.step), (value.tag, float(number.reshape(-1)[0]))]
