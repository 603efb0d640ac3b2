"""The page's plots: Vega-Lite specs, each platform's numbers as columns, and the script that draws them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from pytest_rlregress.fixtures.step_measurements import MINIATURE
from pytest_rlregress.goldens.step_numbers import split_name
from pytest_rlregress.report.judgement.facts import RecordedRun, Upgrade
from pytest_rlregress.report.page import formatting
from pytest_rlregress.util import cache
from pytest_rlregress.util.files import write_whole

#: Runs of a platform in the table beside its plots: the newest.
TABLE_ROWS = 200


@dataclass(frozen=True)
class Metric:
    """One plot of each platform; ``name`` is a key of ``RecordedRun.numbers``, shown in ``unit`` after scaling."""

    name: str
    title: str
    unit: str
    scale: float = 1.0
    format: str = ".3~g"  # of d3


#: The miniature step's.
METRICS = (
    Metric("step_seconds", "Step time", "s"),
    Metric("tokens_per_second", "Generation speed", "tokens/s", format=".3~s"),
    Metric("peak_memory_bytes", "Peak memory", "GiB", 2**-30),
    Metric("loss", "Loss of the last step", ""),
    Metric("agreement", "Engine against trainer, mean |Δ log-probability|", "nats"),
)


@dataclass(frozen=True)
class PlatformSeries:
    """A platform's numbers.

    Attributes:
        columns: Of each metric one value a run, None for none; ``t`` in minutes since 1970. Where a night has no run
            there is a row of None, at which lines break; ``lone`` are the rows that no line reaches.
        changes: Minutes since 1970, and what was installed or exchanged then.
        domains: What the vertical axis shows, by metric: ten per cent to both sides at least: noise is to look small.
        labels: What each plot shows, in words, by metric.
        table: Rows for readers, the newest first: run, a number for each metric, what changed.
        left_out: Runs that are not in the table.
    """

    platform: str
    columns: dict[str, list[float | None]]
    changes: list[tuple[int, str]]
    domains: dict[str, tuple[float, float]]
    labels: dict[str, str]
    table: list[tuple[str, list[float | None], str]]
    left_out: int


def metrics_of(runs: Sequence[RecordedRun]) -> tuple[Metric, ...]:
    """The plots of a platform: the miniature step's, then those of each other step that a run measured."""
    steps = sorted({split_name(name)[0] for run in runs for name in run.numbers} - {MINIATURE})
    others = [
        replace(one, name=f"{step} {one.name}", title=f"{step}: {one.title}") for step in steps for one in METRICS
    ]
    measured = {name for run in runs for name in run.numbers}
    return (*METRICS, *(one for one in others if one.name in measured))


def platform(
    name: str, runs: Sequence[RecordedRun], upgrades: Sequence[Upgrade], metrics: Sequence[Metric] = METRICS
) -> PlatformSeries | None:
    """Collect the numbers of a platform's runs, ascending; None if they have none."""
    measured = [run for run in runs if run.numbers]
    if not measured:
        return None
    changes = {
        upgrade.after.id: (round(upgrade.after.start / 60), formatting.exchanged(upgrade))
        for upgrade in upgrades
        if upgrade.platform == name
    }
    rows: list[tuple[int, list[float | None]]] = []
    before = None
    for run in measured:
        if before and (run.night - before.night).days > 1:
            rows.append((round((before.start + run.start) / 120), [None] * len(metrics)))
        rows.append((round(run.start / 60), [_number(run, metric) for metric in metrics]))
        before = run
    columns = {metric.name: [values[index] for _, values in rows] for index, metric in enumerate(metrics)}
    columns = {key: values for key, values in columns.items() if any(value is not None for value in values)}
    return PlatformSeries(
        name,
        {"t": [t for t, _ in rows], **columns},
        list(changes.values()),
        {key: _domain(values) for key, values in columns.items()},
        {metric.name: _label(name, metric, measured) for metric in metrics},
        [
            (
                formatting.moment(run.start),
                [_number(run, metric) for metric in metrics],
                changes.get(run.id, (0, ""))[1],
            )
            for run in measured[: -TABLE_ROWS - 1 : -1]
        ],
        max(0, len(measured) - TABLE_ROWS),
    )


def span(plots: Sequence[PlatformSeries]) -> tuple[float, float]:
    """Return the range of the time axis in minutes since 1970: first run to last, a week at least."""
    times = [t for plot in plots for t in plot.columns["t"] if t is not None]
    end = max(times, default=0)
    return min(end - 7 * 24 * 60, *times, end), end


def specs(metrics: Sequence[Metric] = METRICS) -> dict[str, Any]:
    """A Vega-Lite spec for each metric, over the data ``runs`` and ``changes``, both with ``t`` in ms since 1970.

    Colours are styles, which the page defines for light and dark: ``value``, ``change``.
    """
    return {metric.name: _spec(metric) for metric in metrics}


def _spec(metric: Metric) -> dict[str, Any]:
    x = {"field": "t", "type": "temporal", "scale": {"type": "utc"}, "title": None}
    y = {
        "field": metric.name,
        "type": "quantitative",
        "scale": {"zero": False, "nice": True},
        "axis": {"format": metric.format, "tickCount": 4},
        "title": None,
    }
    # Of a point that is nearest, and not under the pointer, Vega-Lite shows numbers and times, but no text.
    run = {"timeUnit": "utcyearmonthdatehoursminutes", "field": "t", "title": "run"}
    value = {"field": metric.name, "type": "quantitative", "title": metric.unit or "value", "format": ".5~g"}
    change = {"field": "change", "type": "nominal", "title": "changed"}
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "encodings": ["x"], "clear": "pointerout"}
    return {
        "width": "container",
        "height": 130,
        "autosize": {"type": "fit", "contains": "padding"},
        "data": {"name": "runs"},
        "encoding": {"x": {**x, "axis": {"tickCount": 5, "grid": False, "labelOverlap": True}}},
        "layer": [
            {"data": {"name": "changes"}, "mark": {"type": "rule", "style": "change"}},
            {"mark": {"type": "line", "style": "value"}, "encoding": {"y": y}},
            {
                "params": [{"name": "near", "select": nearest}],
                "transform": [{"filter": f"isValid(datum['{metric.name}'])"}],
                "mark": {"type": "point", "style": "dot", "filled": True, "size": 45},
                "encoding": {
                    "y": y,
                    "opacity": {
                        "condition": [
                            {"param": "near", "empty": False, "value": 1},
                            {"test": "datum.lone", "value": 0.6},
                        ],
                        "value": 0,
                    },
                    "tooltip": [run, value],
                },
            },
            {
                "data": {"name": "changes"},
                "mark": {"type": "point", "style": "mark", "shape": "triangle-down", "filled": True, "size": 60},
                "encoding": {"y": {"value": 3}, "tooltip": [run, change]},
            },
        ],
    }


def _number(run: RecordedRun, metric: Metric) -> float | None:
    value = run.numbers.get(metric.name)
    return None if value is None else float(f"{value * metric.scale:.5g}")


def _domain(values: Sequence[float | None]) -> tuple[float, float]:
    known = [value for value in values if value is not None]
    middle, half = (min(known) + max(known)) / 2, (max(known) - min(known)) / 2
    half = max(half, abs(middle) / 10)
    return float(f"{middle - half:.5g}"), float(f"{middle + half:.5g}")


def _label(name: str, metric: Metric, runs: Sequence[RecordedRun]) -> str:
    values = [(run, value) for run in runs if (value := _number(run, metric)) is not None]
    if not values:
        return f"{metric.title} on {name}: no numbers"
    low, high = (pick(value for _, value in values) for pick in (min, max))
    last, value = values[-1]
    return (
        f"{metric.title} on {name}, {formatting.plural(len(values), 'run')} from {values[0][0].night} to {last.night}: "
        f"last {value:g}, lowest {low:g}, highest {high:g} {metric.unit}".rstrip()
    )


@functools.cache
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which defines ``vegaEmbed``.

    Making it takes two seconds, so it is kept in the user's cache folder where that can be written to.
    """
    import vl_convert

    folder = cache.folder()
    kept = folder / f"vega-{metadata.version('vl-convert-python')}.js"
    with contextlib.suppress(OSError):
        return kept.read_text(encoding="utf-8")
    made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(kept, made)
    return made
