"""The report as a JSON object for scripts. docs/report.md has its keys."""

from __future__ import annotations

import math
from typing import Any

from pytest_rlregress.records.changes import Change, Kind
from pytest_rlregress.records.history import Point, RecordedRun
from pytest_rlregress.records.night import Night, RunComparison
from pytest_rlregress.records.step_numbers import JudgedNumber
from pytest_rlregress.records.stories import list_changed, make_bisect, make_rerun, shorten_path

#: Raised when a key changes its meaning.
FORMAT = 4


def as_json(found: Night | RunComparison) -> dict[str, Any]:
    """Render a night, or a comparison."""
    about: dict[str, Any]
    if isinstance(found, Night):
        about = {
            "night": found.date.isoformat(),
            "summary": found.headline,
            "colour": found.colour,
            "platforms": [
                {
                    "platform": platform.name,
                    "word": platform.word,
                    "runs": list(map(_run, platform.runs)),
                    "last": platform.last and _run(platform.last),
                    "baseline": platform.baseline and vars(platform.baseline),
                }
                for platform in found.platforms
            ],
            "flaky": [
                {**_take(one, "platform", "test"), "failure": one.failure or None, **_take(one, "runs", "bad")}
                for one in found.flaky
            ],
        }
    else:
        about = {"before": _run(found.before), "after": list(map(_run, found.after)), "summary": found.headline}
    return {
        "format": FORMAT,
        **about,
        "trips": any(change.trips for change in found.changes),
        "changes": [_change(change) for change in found.changes if change.kind is not Kind.STEADY],
        "problems": [{"file": shorten_path(problem.path), "text": problem.text} for problem in found.problems],
    }


def _take(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _run(run: RecordedRun) -> dict[str, Any]:
    about = {**_take(run, "id", "start"), "state": run.extra.state, "platform": run.platform}
    about |= {"driver": run.extra.hardware.driver, **_take(run, "commit", "dirty")}
    return {**about, "record": shorten_path(run.path), "night": run.night.isoformat(), "devices": list(run.devices)}


def _change(change: Change) -> dict[str, Any]:
    before, since, latest = change.before, change.since, change.latest
    ends = (before.run, since.run) if before and since and before != since else None
    bisects = ends and change.kind is not Kind.LOST and not change.number  # it needs a test that fails
    return {
        **_take(change, "kind", "platform", "test", "nights", "runs"),
        "number": change.number and _number(change.number),
        "failure": latest.failure or None,
        "side": latest.side or None,
        "trips": change.trips,
        "before": before and _point(before),
        "since": since and _point(since),
        "now": change.now and _point(change.now),
        "packages": list(map(vars, list_changed(*ends, [latest]))) if ends else [],
        "bisect": make_bisect(*ends, change.test, latest.failure) if ends and bisects else [],
        "again": make_rerun(change.now.run, [change.test]) if change.now else [],
    }


def _number(number: JudgedNumber) -> dict[str, Any]:
    about = {
        name: value if math.isfinite(value) else None for name, value in _take(number, "value", "low", "high").items()
    }
    return {"name": number.name, **about, "nights": number.nights}


def _point(point: Point) -> dict[str, Any]:
    about = _take(point, "word", "note")
    return {**about, "night": point.night.isoformat(), "record": shorten_path(point.run.path)}
