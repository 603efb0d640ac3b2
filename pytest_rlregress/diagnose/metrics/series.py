"""The numbers of a run, step by step."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_rlregress.diagnose.metrics.names import NAMES

#: How many steps are kept of a log, in a few MB: no run of a trainer for LLMs has logged as many.
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Series:
    """A metric, step by step.

    Attributes:
        name: As trainers print it.
        steps: In the order of the log.
        values: NaN where it was logged as no number.
        restarts: Where in both the run was started again.
    """

    name: str
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    restarts: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many steps it has."""
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """Iterate over pairs of step and value."""
        return zip(self.steps, self.values, strict=True)

    def add(self, step: int, value: float) -> None:
        """Append a value; the second of one step is passed over."""
        if not len(self) or self.steps[-1] != step or self.restarts[-1:] == [len(self)]:
            self.steps.append(step)
            self.values.append(value)

    def where(self, test: Callable[[int, float], bool]) -> Series:
        """Return the part of it whose step and value pass a test."""
        kept = [place for place, (step, value) in enumerate(self) if test(step, value)]
        steps = array("q", (self.steps[place] for place in kept))
        values = array("d", (self.values[place] for place in kept))
        return Series(self.name, steps, values, [bisect_left(kept, place) for place in self.restarts])

    def numbers(self) -> Series:
        """Return it without what is no number: a metric that was not defined at a step."""
        return self.where(lambda _, value: math.isfinite(value))

    def after(self, step: int) -> Series:
        """Return what follows a step."""
        return self.where(lambda at, _: at > step)

    def all(self, test: Callable[[float], bool]) -> bool:
        """Return whether there are values, and all pass a test."""
        return len(self) > 0 and all(map(test, self.values))

    def constant(self) -> bool:
        """Return whether there are values, and all are the same."""
        return len(set(self.values)) == 1


@dataclass
class Run:
    """What a log has of a run.

    Attributes:
        log: Its name.
        numbered: Whether the trainer wrote the steps' numbers; else they are counted as they come.
        settings: Numbers of the trainer's configuration that it printed, by key: several where several parts of it have
            the key.
        steps: How many were read.
    """

    log: str
    numbered: bool = True
    settings: dict[str, set[float]] = field(default_factory=dict)
    steps: int = 0
    first: int = 0
    last: int = 0
    _series: dict[str, Series] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether it takes no more steps."""
        return self.steps >= MOST_STEPS

    def add(self, step: int | None, values: Mapping[str, float]) -> None:
        """Add what was logged at a step, under the names that ``names.known`` gives."""
        if not self.steps:
            self.numbered = step is not None
        elif self.numbered != (step is not None):  # of another writer: the two would mix
            return
        if step is None:
            step = self.last + 1
        if not self.steps:
            self.first = step
        elif step < self.last:
            self._restart()
        if step != self.last or not self.steps:
            if self.full:
                return
            self.steps += 1
        self.last = step
        for name, value in values.items():
            self._series.setdefault(name, Series(name)).add(step, value)

    def _restart(self) -> None:
        for series in self._series.values():
            series.restarts.append(len(series))

    def get(self, metric: str) -> Series:
        """Return a metric's series, empty where the run has none."""
        return next((self._series[name] for name in NAMES[metric] if name in self._series), Series(metric))

    def named(self, name: str) -> Series:
        """Return the series of a name, empty where the run has none."""
        return self._series.get(name, Series(name))

    def goes_on(self, later: Run) -> bool:
        """Return whether another log has the same run after a restart: it begins within this one, or right behind."""
        numbered = self.numbered and later.numbered and later.steps > 1
        same = self._series.keys() == later._series.keys()
        return numbered and same and self.first < later.first <= self.last + 1

    def joined(self, later: Run) -> Run:
        """Return both as one run that was restarted where the second begins."""
        steps = self.steps + later.steps
        both = Run(f"{self.log}, {later.log}", True, self.settings | later.settings, steps, self.first, later.last)
        for name in self._series | later._series:
            parts = [run._series.get(name, Series(name)) for run in (self, later)]
            border = len(parts[0])
            both._series[name] = Series(
                name,
                parts[0].steps + parts[1].steps,
                parts[0].values + parts[1].values,
                [*parts[0].restarts, border, *(border + place for place in parts[1].restarts)],
            )
        return both
