"""The page's plots: what training steps measured, as the coordinates of inline SVG."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_rlregress.records.history import RecordedRun
from pytest_rlregress.records.measurements import MINIATURE
from pytest_rlregress.records.step_numbers import split_name
from pytest_rlregress.records.stories import describe_difference, moment
from pytest_rlregress.util.text import plural

#: A plot's size in pixels, and where its axes are.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 130, 64, 394, 10, 110

_WEEK = 7 * 24 * 3600

#: Title, unit and scale of each number that a step measures (``records.step_numbers``).
METRICS = {
    "step_seconds": ("Step time", "s", 1.0),
    "tokens_per_second": ("Generation speed", "tokens/s", 1.0),
    "peak_memory_bytes": ("Peak memory", "GiB", 2**-30),
    "loss": ("Loss of the last step", "", 1.0),
    "grad_norm": ("Gradient norm of the first step", "", 1.0),
    "reward": ("Mean reward of the first step", "", 1.0),
    "agreement": ("Engine against trainer, mean |Δ log-probability|", "nats", 1.0),
    "kl": ("Engine against trainer, k3 of the first step", "nats", 1.0),
}


@dataclass(frozen=True)
class Plot:
    """One number of a platform over time, in pixels.

    Attributes:
        label: What it shows, in words.
        lines: The points of each line; lines break where a night has no run.
        dots: Place and title of each run.
        changes: Horizontal place and title of each change of packages, driver or commit.
        values: Vertical place and text of each mark on the vertical axis.
        days: Horizontal place and text of both ends of the time axis.
    """

    name: str
    title: str
    unit: str
    label: str
    lines: list[str]
    dots: list[tuple[float, float, str]]
    changes: list[tuple[float, str]]
    values: list[tuple[float, str]]
    days: list[tuple[float, str]]


def make_plots(runs: Sequence[RecordedRun]) -> dict[str, list[Plot]]:
    """Make the plots of every platform that has measured something; all have the same time axis, a week at least.

    First come the miniature step's, then those of each other step.
    """
    measured = [run for run in runs if run.numbers]
    if not measured:
        return {}
    end = max(run.start for run in measured)
    span = min(end - _WEEK, *(run.start for run in measured)), end
    names = {name for run in measured for name in run.numbers}
    steps = sorted({split_name(name)[0] for name in names} - {MINIATURE})
    names_in_order = [*METRICS, *(f"{step} {metric}" for step in steps for metric in METRICS)]
    found = {}
    for platform in sorted({run.platform for run in measured}):
        every = [run for run in runs if run.platform == platform]
        changes = {after.id: _describe_change(before, after) for before, after in pairwise(every)}
        mine = {name: [run for run in every if name in run.numbers] for name in names_in_order}
        found[platform] = [_make_plot(name, some, changes, span) for name, some in mine.items() if some]
    return found


def _describe_change(before: RecordedRun, after: RecordedRun) -> str:
    """Describe what was exchanged between two runs; "" where that isn't a package and no driver."""
    ends = ((run.lock.digest, run.extra.hardware.driver) for run in (before, after))
    return "" if len({*ends}) == 1 else describe_difference(before, after).replace(" -> ", " → ")


def _make_plot(name: str, runs: Sequence[RecordedRun], changes: Mapping[str, str], span: tuple[float, float]) -> Plot:
    step, metric = split_name(name)
    title, unit, scale = METRICS[metric]
    if step != MINIATURE:
        title = f"{step}: {title}"
    values = {run.id: float(f"{run.numbers[name] * scale:.5g}") for run in runs}
    lowest, highest = min(values.values()), max(values.values())
    middle = (lowest + highest) / 2
    half = max((highest - lowest) / 2, abs(middle) / 10) or 1  # noise is to look small
    low, high = middle - half, middle + half

    def x(time: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * (time - span[0]) / (span[1] - span[0]), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low), 1)

    dots = [(x(run.start), y(values[run.id]), f"{moment(run)} UTC: {values[run.id]:g} {unit}") for run in runs]
    lines: list[list[str]] = [[]]
    for before, run, (across, down, _) in zip([runs[0], *runs], runs, dots, strict=False):
        if (run.night - before.night).days > 1:
            lines.append([])
        lines[-1].append(f"{across},{down}")
    label = (
        f"{title} on {runs[-1].platform}, {plural(len(runs), 'run')} from {runs[0].night} to {runs[-1].night}: "
        f"last {values[runs[-1].id]:g}, lowest {lowest:g}, highest {highest:g} {unit}".rstrip()
    )
    return Plot(
        name,
        title,
        unit,
        label,
        list(map(" ".join, lines)),
        dots,
        [(x(run.start), changes[run.id]) for run in runs if changes.get(run.id)],
        [(y(mark), f"{mark:.4g}") for mark in (low, middle, high)],
        [(x(time), str(datetime.datetime.fromtimestamp(time, datetime.UTC).date())) for time in span],
    )
