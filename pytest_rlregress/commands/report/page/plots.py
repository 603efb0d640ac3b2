"""The page's plots: what training steps measured, as the coordinates of inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pytest_rlregress.commands.report.judgement.facts import RecordedRun
from pytest_rlregress.commands.report.judgement.stories import between
from pytest_rlregress.commands.report.page import formatting
from pytest_rlregress.fixtures.step_measurements import MINIATURE
from pytest_rlregress.goldens.step_numbers import split_name

#: A plot's size in pixels, and where its axes are.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 130, 64, 394, 10, 110

_WEEK = 7 * 24 * 3600


@dataclass(frozen=True)
class Metric:
    """One plot of each platform; ``name`` is a key of ``RecordedRun.numbers``, shown in ``unit`` after scaling."""

    name: str
    title: str
    unit: str
    scale: float = 1.0


#: The miniature step's.
METRICS = (
    Metric("step_seconds", "Step time", "s"),
    Metric("tokens_per_second", "Generation speed", "tokens/s"),
    Metric("peak_memory_bytes", "Peak memory", "GiB", 2**-30),
    Metric("loss", "Loss of the last step", ""),
    Metric("agreement", "Engine against trainer, mean |Δ log-probability|", "nats"),
)


@dataclass(frozen=True)
class Plot:
    """One metric of a platform, in pixels.

    Attributes:
        label: What it shows, in words.
        lines: The points of each line; lines break where a night has no run.
        dots: Place and title of each run.
        changes: Horizontal place and title of each change of packages, driver or commit.
        values: Vertical place and text of each mark on the vertical axis.
        days: Horizontal place and text of both ends of the time axis.
    """

    metric: Metric
    label: str
    lines: list[str]
    dots: list[tuple[float, float, str]]
    changes: list[tuple[float, str]]
    values: list[tuple[float, str]]
    days: list[tuple[float, str]]


@dataclass(frozen=True)
class PlatformPlots:
    """A platform's plots."""

    platform: str
    plots: list[Plot]


def metrics_of(runs: Sequence[RecordedRun]) -> tuple[Metric, ...]:
    """List the plots of a platform: the miniature step's, then those of each other step that a run measured."""
    measured = {name for run in runs for name in run.numbers}
    steps = sorted({split_name(name)[0] for name in measured} - {MINIATURE})
    others = [
        replace(one, name=f"{step} {one.name}", title=f"{step}: {one.title}") for step in steps for one in METRICS
    ]
    return (*METRICS, *(one for one in others if one.name in measured))


def make_plots(runs: Sequence[RecordedRun]) -> list[PlatformPlots]:
    """Make the plots of every platform that has measured something; all have the same time axis, a week at least."""
    measured, metrics = [run for run in runs if run.numbers], metrics_of(runs)
    if not measured:
        return []
    end = max(run.start for run in measured)
    span = min(end - _WEEK, *(run.start for run in measured)), end
    found = []
    for platform in sorted({run.platform for run in measured}):
        every = [run for run in runs if run.platform == platform]
        changes = {after.id: _exchanged(before, after) for before, after in pairwise(every)}
        mine = [run for run in every if run.numbers]
        plots = [
            _plot(metric, mine, changes, span) for metric in metrics if any(metric.name in one.numbers for one in mine)
        ]
        found.append(PlatformPlots(platform, plots))
    return found


def _exchanged(before: RecordedRun, after: RecordedRun) -> str:
    """Describe what was exchanged between two runs; "" where that isn't a package and no driver."""
    same = (before.lock.digest, before.driver) == (after.lock.digest, after.driver)
    return "" if same else between(before, after).replace(" -> ", " → ")


def _plot(metric: Metric, runs: Sequence[RecordedRun], changes: Mapping[str, str], span: tuple[float, float]) -> Plot:
    known = [(run, value) for run in runs if (value := _number(run, metric)) is not None]
    values = [value for _, value in known]
    middle, half = (min(values) + max(values)) / 2, (max(values) - min(values)) / 2
    half = max(half, abs(middle) / 10) or 1  # noise is to look small
    low, high = middle - half, middle + half

    def x(moment: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (moment - span[0]) / (span[1] - span[0]), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    last, value = known[-1]
    label = (
        f"{metric.title} on {last.platform}, {formatting.plural(len(known), 'run')} from {known[0][0].night} to "
        f"{last.night}: last {value:g}, lowest {min(values):g}, highest {max(values):g} {metric.unit}".rstrip()
    )
    return Plot(
        metric,
        label,
        [" ".join(f"{x(run.start)},{y(value)}" for run, value in line) for line in _lines(known)],
        [(x(run.start), y(value), f"{formatting.moment(run.start)}: {value:g} {metric.unit}") for run, value in known],
        [(x(run.start), changes[run.id]) for run in runs if changes.get(run.id)],
        [(y(mark), f"{mark:.4g}") for mark in (low, middle, high)],
        [(x(moment), formatting.moment(moment)[:10]) for moment in span],
    )


def _lines(known: Sequence[tuple[RecordedRun, float]]) -> Iterator[list[tuple[RecordedRun, float]]]:
    """Split a platform's numbers where a night has no run."""
    begin = 0
    for index, ((before, _), (after, _)) in enumerate(pairwise(known), 1):
        if (after.night - before.night).days > 1:
            yield [*known[begin:index]]
            begin = index
    yield [*known[begin:]]


def _number(run: RecordedRun, metric: Metric) -> float | None:
    value = run.numbers.get(metric.name)
    return None if value is None else float(f"{value * metric.scale:.5g}")
