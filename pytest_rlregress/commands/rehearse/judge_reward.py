"""Judge the trials of a reward function (``reward_trial``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_rlregress.commands.rehearse import rows

Trials = Mapping[str, list[Mapping[str, Any]]]


def judge(event: Mapping[str, Any]) -> rows.CheckRow:
    """Return the row of a reward function: the first complaint, or that it can't tell right from wrong here."""
    by_case: dict[str, list[Mapping[str, Any]]] = {}
    for trial in event["trials"]:
        by_case.setdefault(trial["case"], []).append(trial)
    name = f"reward {event['name']}"
    right, empty = _best(by_case, "right"), _best(by_case, "empty")
    value = f"right {_show(right)}, wrong {_show(_best(by_case, 'wrong'))}, empty {_show(empty)}"
    complaint = next(find_complaints(by_case, event), "")
    if complaint:
        return rows.CheckRow(name, value, "right > empty", rows.FINDING, complaint)
    if right is None or empty is None or right <= empty:
        why = "no answer that was tried scores above an empty one, and the function names no column of answers"
        return rows.CheckRow(name, value, "", rows.UNCHECKED, why)
    return rows.CheckRow(name, value, "right > empty", rows.OK)


def _numbers(trial: Mapping[str, Any]) -> list[float]:
    values = trial.get("values")
    if not isinstance(values, list):
        return []
    return [float(one) for one in values if isinstance(one, (int, float)) and math.isfinite(one)]


def _best(by_case: Trials, case: str) -> float | None:
    return max((one for trial in by_case.get(case, ()) for one in _numbers(trial)), default=None)


def _show(number: float | None) -> str:
    return "unknown" if number is None else f"{number:.3g}"


def find_complaints(by_case: Trials, event: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a reward function, the worst first."""
    for case, trials in by_case.items():
        for trial in trials:
            if trial.get("hung"):
                yield f"it doesn't return of the completion {case!r}"
            elif trial.get("died"):
                yield f"its process dies of the completion {case!r}"
            elif "error" in trial:
                yield f"it raises {trial['error']} of the completion {case!r}: the whole run ends there"
    for case, trials in by_case.items():
        for trial in trials:
            if "asked" in trial:
                yield from _judge_values(case, trial["values"], trial["asked"])
    alike = [tuple(_numbers(trial)) for trial in by_case.get("alike", ())]
    if len(set(alike)) > 1:
        yield f"{len(alike)} calls with one completion give {len(set(alike))} rewards: {alike[0]}, {alike[1]}, …"
    many = next((_numbers(trial) for trial in by_case.get(f"{event['rows']} completions", ())), [])
    if len(set(many)) > 1:
        yield f"equal completions of one call get {len(set(many))} rewards: {sorted(set(many))[:3]}"
    right, empty, wrong = (_best(by_case, case) for case in ("right", "empty", "wrong"))
    if event["uses_gold"] and right is not None:
        if empty is not None and right <= empty:
            yield f"no form of the right answer scores above an empty completion: {right:.3g}, {empty:.3g}"
        if wrong is not None and right < wrong:
            yield f"a wrong answer scores above the right one: {wrong:.3g}, {right:.3g}"


def _judge_values(case: str, values: Any, asked: int) -> Iterator[str]:
    if not isinstance(values, list):
        yield f"it gives a {values} of the completion {case!r}, not a list of numbers"
    elif len(values) != asked:
        yield f"it gives {len(values)} rewards for {asked} completions ({case})"
    else:
        strange = [one for one in values if isinstance(one, str)]
        if strange:
            yield f"it gives {strange[0]} of the completion {case!r}, not a number"
        if any(isinstance(one, float) and math.isnan(one) for one in values):
            yield f"it gives NaN of the completion {case!r}"
