"""Compare two runs, or one and its reruns after a change, without a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlregress.commands.report.judgement.classify import classify_results, missing_change
from pytest_rlregress.commands.report.judgement.facts import Change, Point, Problem, RecordedRun
from pytest_rlregress.records.reader import RecordError

if TYPE_CHECKING:
    from pytest_rlregress.commands.report.history.store import History


@dataclass(frozen=True)
class RunComparison:
    """What changed between a run and those after it.

    Attributes:
        after: One run, and its reruns.
        changes: One for each test that says something in either.
    """

    before: RecordedRun
    after: tuple[RecordedRun, ...]
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...] = ()


def compare(history: History, before: Path, after: Sequence[Path]) -> RunComparison:
    """Classify the changes from one run to those after it, whatever their clocks say.

    Args:
        history: Of these files.
        before: The record to compare with.
        after: The records of runs after a change, all of the same: what is bad in one only is not confirmed.

    Raises:
        RecordError: One of them isn't a record, or two are of the same run.
    """
    first, *rest = (_run(history, path) for path in (before, *after))
    if len({run.id for run in (first, *rest)}) <= len(rest):
        raise RecordError(
            f"two of {', '.join(map(str, (before, *after)))} are of the same run: a copy confirms nothing"
        )
    tests: dict[str, dict[str, Point]] = {}
    for platform in history.platforms:
        for test, points in history.timelines(platform).items():
            tests.setdefault(test, {}).update({point.run.id: point for point in points})
    changes = []
    for test, by_run in tests.items():
        earlier, later = ([by_run[run.id] for run in runs if run.id in by_run] for runs in ([first], rest))
        found = classify_results(test, earlier, later) or missing_change(test, earlier, later, [first], rest)
        if found is not None:
            changes.append(found)
    return RunComparison(first, tuple(rest), tuple(changes), history.problems)


def _run(history: History, path: Path) -> RecordedRun:
    for run in history.runs:
        if run.path.resolve() == path.resolve():
            return run
    reasons = [problem.text for problem in history.problems if problem.path.resolve() == path.resolve()]
    raise RecordError(f"{path}: {'; '.join(reasons) or 'no record of a run. pytest --rl-record-dir=DIR writes one'}")
