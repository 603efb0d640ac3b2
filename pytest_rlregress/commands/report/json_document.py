"""The report as a JSON object for scripts. docs/report.md has its keys."""

from __future__ import annotations

from typing import Any

from pytest_rlregress.commands.report.judgement import headline, next_commands
from pytest_rlregress.commands.report.judgement.comparison import RunComparison
from pytest_rlregress.commands.report.judgement.facts import Change, Night, PlatformNight, Point, RecordedRun
from pytest_rlregress.commands.report.judgement.kinds import Kind
from pytest_rlregress.commands.report.judgement.next_commands import near

#: Raised when a key changes its meaning.
FORMAT = 4


def as_json(found: Night | RunComparison) -> dict[str, Any]:
    """Render a night, or a comparison."""
    if isinstance(found, Night):
        first = headline.of_night(found)
        about: dict[str, Any] = {
            "night": found.date.isoformat(),
            "summary": first.text,
            "colour": first.colour,
            "platforms": list(map(_platform, found.platforms)),
            "flaky": [_fields(one, "platform", "test", "failure", "runs", "bad") for one in found.flaky],
        }
    else:
        about = {
            "before": _run(found.before),
            "after": list(map(_run, found.after)),
            "summary": headline.of_comparison(found.changes),
        }
    told = [_change(change) for change in found.changes if change.kind is not Kind.STEADY]
    problems = [{"file": near(problem.path), "text": problem.text} for problem in found.problems]
    return {
        "format": FORMAT,
        **about,
        "trips": any(change.trips for change in found.changes),
        "changes": told,
        "problems": problems,
    }


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _platform(platform: PlatformNight) -> dict[str, Any]:
    return {
        "platform": platform.name,
        "word": platform.word,
        "runs": list(map(_run, platform.runs)),
        "last": platform.last and _run(platform.last),
    }


def _run(run: RecordedRun) -> dict[str, Any]:
    about = _fields(run, "id", "start", "state", "platform", "driver", "commit", "dirty")
    return {**about, "record": near(run.path), "night": run.night.isoformat(), "devices": list(run.devices)}


def _change(change: Change) -> dict[str, Any]:
    before, since = change.before, change.since
    ends = (before.run, since.run) if before and since and before != since else None
    lost = change.kind is Kind.LOST  # a bisect needs a test that fails
    return {
        **_fields(change, "kind", "platform", "test", "nights", "runs"),
        **_fields(change.latest, "failure", "side"),
        "trips": change.trips,
        "before": before and _point(before),
        "since": since and _point(since),
        "now": change.now and _point(change.now),
        "packages": list(map(vars, next_commands.changed(*ends, [change.latest]))) if ends else [],
        "bisect": list(next_commands.bisect(*ends, change.test, change.latest.failure)) if ends and not lost else [],
        "again": list(next_commands.again(change.now.run, [change.test])) if change.now else [],
    }


def _point(point: Point) -> dict[str, Any]:
    return {**_fields(point, "word", "note"), "night": point.night.isoformat(), "record": near(point.run.path)}
