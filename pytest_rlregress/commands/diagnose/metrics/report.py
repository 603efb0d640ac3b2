"""Show what was found in metrics, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pytest_rlregress.commands.diagnose.metrics.series import Run
from pytest_rlregress.commands.diagnose.metrics.signs import MetricFinding, number
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.util.text import wrapped

_VALUES = 6


def as_text(
    found: Sequence[MetricFinding], runs: Iterable[Run], failures: Iterable[Failure], trainer: str
) -> list[str]:
    """Return the paragraphs on metrics; none where no log has any."""
    read = [run for run in runs if run.steps]
    if not read:
        return []
    logs = ", ".join(f"{run.log} ({_steps(run)})" for run in read)
    if not found:
        return [_wrapped("In the metrics: ", f"no sign of a documented failure; read were {logs}", indent="")]
    catalogue = {failure.id: failure for failure in failures}
    return [_wrapped("In the metrics: ", logs, indent=""), *(_finding(one, catalogue, trainer) for one in found)]


def _steps(run: Run) -> str:
    if not run.numbered:
        return f"{run.steps} lines without steps' numbers, counted from 1"
    return f"{run.steps} step{'s' * (run.steps != 1)}, {run.first} to {run.last}"


def _finding(one: MetricFinding, catalogue: dict[str, Failure], trainer: str) -> str:
    known = [catalogue[name] for name in one.text["ids"] if name in catalogue]
    certain = one.is_certain
    lines = [f"{'Could be ' * (not certain)}{failure.id}: {failure.title}" for failure in known]
    shown = ", ".join(f"{number(value)} at {step}" for step, value in _some(one.shown()))
    lines += [
        _wrapped("  ", f"{one.log}: {one.what}"),
        _wrapped("  values: ", shown),
        _wrapped("  means: ", one.text["means"]),
    ]
    if certain:
        for failure in known:
            lines += [_wrapped("  cause: ", failure.cause), _wrapped("  remedy: ", failure.remedy_with(trainer))]
    return "\n".join([*lines, _wrapped("  would confirm it: ", one.text["confirm"])])


def as_json(found: Iterable[MetricFinding], runs: Iterable[Run]) -> dict[str, object]:
    """Return the entries on metrics; a value that is no number is null."""
    return {
        "metrics": [
            {key: getattr(one, key) for key in ("sign", "what", "confidence", "log")}
            | {"metric": one.series.name, **one.text}
            | {"steps": [step for step, _ in one.shown()]}
            | {"values": [value if math.isfinite(value) else None for _, value in one.shown()]}
            for one in found
        ],
        "metrics_read": [
            {key: getattr(run, key) for key in ("log", "steps", "first", "last")} for run in runs if run.steps
        ],
    }


def _some(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    half = _VALUES // 2
    return pairs if len(pairs) <= _VALUES else [*pairs[:half], *pairs[-half:]]


def _wrapped(key: str, text: str, indent: str = "    ") -> str:
    return "\n".join(wrapped(key + text, rest=indent))
