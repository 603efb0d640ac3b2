"""The report as a JSON object for scripts. docs/report.md has its keys."""

from __future__ import annotations

from typing import Any

from pytest_rlregress.report import sentences
from pytest_rlregress.report.judgement import headline, upgrades
from pytest_rlregress.report.judgement.comparison import RunComparison
from pytest_rlregress.report.judgement.facts import (
    Change,
    Flaky,
    Flip,
    Night,
    PlatformNight,
    Point,
    Problem,
    RecordedRun,
    Upgrade,
)
from pytest_rlregress.report.judgement.kinds import TRIPS, Kind
from pytest_rlregress.stack.locks import PackageChange

#: Raised when a key changes its meaning.
FORMAT = 1


def as_json(found: Night | RunComparison) -> dict[str, Any]:
    """Render a night, or a comparison."""
    if isinstance(found, Night):
        changes = [change for platform in found.platforms for change in platform.changes]
        first = headline.of_night(found)
        about: dict[str, Any] = {
            "night": found.date.isoformat(),
            "summary": first.text,
            "colour": first.colour,
            "platforms": list(map(_platform, found.platforms)),
            "upgrades": list(map(_upgrade, found.upgrades)),
            "flaky": list(map(_flaky, found.flaky)),
        }
    else:
        changes = list(found.changes)
        about = {
            "before": _run(found.before),
            "after": list(map(_run, found.after)),
            "summary": headline.of_comparison(found.changes),
        }
    told = [_change(change) for change in changes if change.kind is not Kind.STEADY]
    problems = list(map(_problem, found.problems))
    return {"format": FORMAT, **about, "trips": sentences.tripped(changes), "changes": told, "problems": problems}


def _platform(platform: PlatformNight) -> dict[str, Any]:
    return {
        "platform": platform.name,
        "word": platform.cells[-1].word,
        "runs": list(map(_run, platform.runs)),
        "last": platform.last and _run(platform.last),
        "last_good": platform.last_good and _run(platform.last_good),
    }


def _run(run: RecordedRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "record": upgrades.near(run.path),
        "start": run.start,
        "night": run.night.isoformat(),
        "state": run.state,
        "platform": run.platform,
        "devices": list(run.devices),
        "driver": run.driver,
        "commit": run.commit,
        "dirty": run.dirty,
    }


def _change(change: Change) -> dict[str, Any]:
    before, since = change.before, change.since
    ends = (before.run, since.run) if before and since and before != since else None
    lost = change.kind is Kind.LOST_COVERAGE  # a bisect needs a test that fails
    return {
        "kind": change.kind,
        "trips": change.kind in TRIPS,
        "platform": change.platform,
        "test": change.test,
        "failure": change.latest.failure,
        "side": change.latest.side,
        "before": before and _point(before),
        "since": since and _point(since),
        "now": change.now and _point(change.now),
        "nights": change.nights,
        "runs": change.runs,
        "packages": _packages(upgrades.changed(*ends, [change.latest])) if ends else [],
        "bisect": list(upgrades.bisect(*ends, change.test, change.latest.failure)) if ends and not lost else [],
        "again": list(upgrades.again(change.now.run, [change.test])) if change.now else [],
    }


def _point(point: Point) -> dict[str, Any]:
    record = upgrades.near(point.run.path)
    return {"word": point.word, "note": point.note, "night": point.run.night.isoformat(), "record": record}


def _packages(changes: tuple[PackageChange, ...]) -> list[dict[str, Any]]:
    return [{"name": change.name, "before": change.before, "after": change.after} for change in changes]


def _upgrade(upgrade: Upgrade) -> dict[str, Any]:
    return {
        "platform": upgrade.platform,
        "before": upgrades.near(upgrade.before.path),
        "after": upgrades.near(upgrade.after.path),
        "night": upgrade.after.night.isoformat(),
        "packages": _packages(upgrade.changed),
        "driver": upgrade.driver and list(upgrade.driver),
        "commit": upgrade.commit and list(upgrade.commit),
        "worse": list(map(_flip, upgrade.worse)),
        "better": list(map(_flip, upgrade.better)),
        "command": upgrade.command,
    }


def _flip(flip: Flip) -> dict[str, str]:
    return {"test": flip.test, "before": flip.before.word, "after": flip.after.word}


def _flaky(one: Flaky) -> dict[str, Any]:
    return {"platform": one.platform, "test": one.test, "failure": one.failure, "runs": one.runs, "bad": one.bad}


def _problem(problem: Problem) -> dict[str, str]:
    return {"file": upgrades.near(problem.path), "text": problem.text}
