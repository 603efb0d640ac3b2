"""Judge the numbers of training steps, night after night, against the trusted nights before. Pure functions.

A number's trusted nights are those of the same platform, hardware and test, with as many steps of the same variant.
Packages, driver and commit don't separate nights: an upgrade that moves a number is what is looked for, so the
reference stays until a record is trusted by hand.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern

from pytest_rlregress.failures.verdicts import EXPECTED, NumberWord, Rank
from pytest_rlregress.records.history import Point, RecordedRun
from pytest_rlregress.records.step_numbers import JudgedNumber, MeasuredStep

#: Trusted nights that are only watched.
BASELINE = 10
#: The latest values that a corridor is made of: it follows a number by a month of nights.
_WINDOW = 30
#: Half a corridor, in distances from the median that four of five trusted values keep. Of a normal distribution that
#: distance is 1.28 standard deviations. The fifth may be bad nights that were only watched.
_SPREADS = 6
#: How far a number may drift from its first trusted nights, in half corridors of these nights.
_DRIFT = 1.5


@dataclass(frozen=True)
class Width:
    """The least that a number's corridor has to each side: healthy steps differ by it though their nights repeat.

    Attributes:
        least: A factor where the number is judged by ratio, else a difference.
        zero: What is smaller counts as this, for a ratio; None for a difference.
    """

    least: float
    zero: float | None = None

    def scale(self, value: float) -> float:
        """Return the value on the scale that it is judged on."""
        return value if self.zero is None else math.log(max(value, self.zero))

    def unscale(self, value: float) -> float:
        """Return a scaled value in its own unit."""
        return value if self.zero is None else math.exp(min(value, 700))

    @property
    def half(self) -> float:
        """Half the narrowest corridor, on the scale."""
        return self.least if self.zero is None else math.log(self.least)


#: By number. An upgrade of the engine may draw other tokens, and a repeated night on a CPU is the same to the last bit:
#: loss, reward and grad_norm are given what another draw moved them by in the recordings of the goldens (0.05, 0.14 and
#: a factor of 1.9), and some more. The golden judges them where the same tokens are drawn. A sum in another order moves
#: agreement by a fourth and kl by twice that; kl below 1e-6 is the rounding of float32. On one shared CPU a step took
#: 2.1 times as long as on another day; its memory was the same to 4 %.
_WIDTHS = {
    "loss": Width(0.1),
    "reward": Width(0.25),
    "grad_norm": Width(2.5, zero=1e-6),
    "agreement": Width(1.5, zero=1e-9),
    "kl": Width(2, zero=1e-6),
    "step_seconds": Width(3, zero=1e-4),
    "tokens_per_second": Width(3, zero=1e-4),
    "peak_memory_bytes": Width(1.25, zero=1),
}


@dataclass(frozen=True)
class Corridor:
    """The values that the trusted nights allow, in the number's own unit, and how a value stands to them.

    ``drifted`` says that the latest nights would allow it, and the first don't. The ends are NaN while nights are only
    watched.
    """

    word: NumberWord
    low: float = math.nan
    high: float = math.nan
    drifted: bool = False


@dataclass
class Reference:
    """The trusted nights of one number: their values, scaled and ascending by night, and how many nights they are.

    ``limits`` are the ends of what a drift may come to, once there are enough nights.
    """

    width: Width
    values: list[float] = field(default_factory=list)
    nights: int = 0
    last: datetime.date | None = None
    limits: tuple[float, float] | None = None

    def judge(self, value: float) -> Corridor:
        """Judge a value; NaN stands for one that is missing or not finite."""
        if self.nights < BASELINE:
            return Corridor(NumberWord.WATCHED)
        middle, half = self._measure(self.values[-_WINDOW:])
        if self.limits is None:  # from then on the first values are the same
            first, limit = self._measure(self.values[:BASELINE])
            self.limits = first - limit * _DRIFT, first + limit * _DRIFT
        low = max(middle - half, self.limits[0])
        high = min(middle + half, self.limits[1])
        ends = self.width.unscale(low), self.width.unscale(high)
        if math.isnan(value):
            return Corridor(NumberWord.MISSING, *ends)
        scaled = self.width.scale(value)
        if low <= scaled <= high:
            return Corridor(NumberWord.INSIDE, *ends)
        return Corridor(NumberWord.OUTSIDE, *ends, drifted=abs(scaled - middle) <= half)

    def _measure(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the middle of values, and half the corridor around it."""
        middle = statistics.median(values)
        distances = sorted(abs(value - middle) for value in values)
        spread = distances[len(distances) * 4 // 5 - 1]
        return middle, max(_SPREADS * spread, self.width.half)

    def trust(self, night: datetime.date, value: float) -> None:
        """Add a value to the reference."""
        self.values.append(self.width.scale(value))
        self.nights += night != self.last
        self.last = night

    def restart(self) -> None:
        """Forget all nights."""
        self.values.clear()
        self.nights = 0
        self.last = None
        self.limits = None


@dataclass
class _Series:
    """The references of a test's numbers, as long as it trains the same variant for as many steps."""

    form: tuple[str, int]
    references: dict[str, Reference] = field(default_factory=dict)


def judge_numbers(
    runs: Iterable[RecordedRun], results: Mapping[str, Sequence[Point]], trust: Mapping[str, bool]
) -> dict[tuple[str, str], list[Point]]:
    """Judge each step's numbers in each run; returns the results by test and number, ascending.

    A number is trusted if its test is good and it is inside the corridor or only watched.

    Args:
        runs: Of one platform, ascending.
        results: By test, its results in these runs.
        trust: What was decided by hand, by id of a run. An untrusted run is judged all the same. Of a trusted one each
            number that is outside begins a new reference.
    """
    by_hardware: dict[object, dict[tuple[str, str], _Series]] = {}
    of_runs: dict[str, dict[str, Point]] = {}
    found: dict[tuple[str, str], list[Point]] = {}
    for run in runs:
        series = by_hardware.setdefault(run.hardware, {})
        measured = {(step.test, step.step): step for step in run.steps}
        preferred = {key[1]: key for key in reversed(measured)}
        for key, step in measured.items():
            held = series.get(key)
            form = step.variant, step.length
            if (held or preferred[step.step] == key) and (held is None or held.form != form):
                series[key] = _Series(form)
        for key, one in series.items():
            test = key[0]
            if test not in of_runs:
                of_runs[test] = {point.run.id: point for point in results.get(test, ())}
            point = of_runs[test].get(run.id)
            if point is None:
                continue
            for name, judged in _judge_step(run, point, measured.get(key), key[1], one.references, trust.get(run.id)):
                found.setdefault((test, name), []).append(judged)
    return found


def _judge_step(
    run: RecordedRun,
    point: Point,
    step: MeasuredStep | None,
    step_name: str,
    references: dict[str, Reference],
    by_hand: bool | None,
) -> Iterator[tuple[str, Point]]:
    """Yield the result of each number of a test's step in one run; what can be trusted is added to the references.

    A test that isn't good is told by itself: what it measured is judged, what it lacks isn't missing.
    """
    is_good = point.rank is Rank.GOOD and point.word != EXPECTED
    numbers = step.numbers if step else {}
    broken = step.broken if step else frozenset()
    for name in numbers:
        if name in _WIDTHS:
            references.setdefault(name, Reference(_WIDTHS[name]))
    for name, reference in references.items():
        value = math.nan if name in broken else numbers.get(name, math.nan)
        if math.isnan(value) and not (is_good and reference.nights):
            continue
        corridor = reference.judge(value)
        nights = reference.nights - (reference.last == run.night)
        word = corridor.word
        if by_hand and word.is_bad:
            word = NumberWord.ACCEPTED
            reference.restart()
        if by_hand is not False and is_good and not word.is_bad and not math.isnan(value):
            reference.trust(run.night, value)
        number = JudgedNumber(f"{step_name} {name}", value, corridor.low, corridor.high, nights)
        yield name, Point(run, word, note=_describe(number, word, corridor.drifted), number=number)


def _describe(number: JudgedNumber, word: NumberWord, drifted: bool) -> str:
    """Say how a number is beside its corridor."""
    if not word.is_bad:
        return intern(number.name)
    trusted = f"the first {BASELINE}" if drifted else number.nights
    allowed = f"{trusted} trusted nights allow {number.low:.3g} to {number.high:.3g}"
    if word is NumberWord.MISSING:
        return f"{number.name} is missing or not finite; {allowed}"
    return f"{number.name} {'drifted to' if drifted else 'is'} {number.value:.3g}; {allowed}"
