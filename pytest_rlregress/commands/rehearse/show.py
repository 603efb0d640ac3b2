"""What a rehearsal prints: a table, three rows token by token, what wasn't rehearsed, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_rlregress.commands.rehearse.judge import Judged
from pytest_rlregress.commands.rehearse.record import RehearsalRecord
from pytest_rlregress.commands.rehearse.rows import FINDING, UNCHECKED
from pytest_rlregress.util.coverage import Result
from pytest_rlregress.util.text import plural, wrapped

#: Tokens that are shown of each completion.
TOKENS = 8
#: More changes for one reason are told in one paragraph.
MANY = 5


def as_text(title: str, judged: Judged, ended: Sequence[str]) -> str:
    """Write all that a rehearsal came to; ``ended`` are lines on how the command ended."""
    lines = ["as it is: nothing was made small"] if judged.as_is else ["made small:"]
    for why, changes in _group_by_reason(judged.changes).items():
        told = [f"{change['key']}: {change['old']} → {change['new']}" for change in changes]
        if len(told) > MANY:
            told = [f"{len(told)} settings: {'; '.join(told)}"]
        for line in told:
            lines += wrapped(f"{line} ({why})", "  ", "      ")
    lines += ["", *_table(judged), ""]
    for row in judged.findings:
        lines += [*wrapped(f"{row.check}: {row.why}", "", "  "), ""]
    if judged.records:
        lines += [*show_rows(judged.records[0]), ""]
    for row in judged.rows:
        if row.status not in (FINDING, "ok"):
            lines += wrapped(f"{row.status}: {row.check}: {row.why}", "", "  ")
    for what, why in judged.unrehearsed:
        lines += wrapped(f"not {_name_act(judged)}: {what}: {why}", "", "  ")
    for error in judged.broken:
        lines += wrapped(f"error of the rehearsal itself, the checks beside it hold: {error}", "", "  ")
    if judged.cost is not None:
        lines.append(f"watching cost {judged.cost:.2%} of a step".replace("%", " %"))
    return "\n".join([*lines, *ended, *wrapped(conclude(title, judged), "", "  ")])


def _name_act(judged: Judged) -> str:
    return "watched" if judged.as_is else "rehearsed"


def _group_by_reason(changes: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for change in changes:
        found.setdefault(change["why"], []).append(change)
    return found


def _table(judged: Judged) -> list[str]:
    head = ("check", "value", "limit", "status")
    cells = [head, *((row.check, row.value, row.limit, row.status) for row in judged.rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def show_rows(record: RehearsalRecord) -> list[str]:
    """Write three completions of a step token by token: id, text, trained or not, and what both sides say of it."""
    if not record.completions or not record.trained_tokens or not record.pieces:
        return []
    trained = set(record.trained_tokens)
    lines = [f"step {record.number}, token by token: id, text, trained or not, log-probability of engine and trainer"]
    for row, (ids, pieces) in enumerate(zip(record.completions, record.pieces, strict=False)):
        advantage = record.wanted[row] if record.wanted else 0.0
        lines.append(f"  completion {row}, {plural(len(ids), 'token')}, advantage {advantage:+.3f}")
        numbers = record.logprobs[row] if record.logprobs else ((), ())
        for at, token in enumerate(ids[:TOKENS]):
            said = "".join(f"  {side[at]:9.4f}" for side in numbers if at < len(side))
            is_trained = "trained" if ids in trained else "masked"
            lines.append(f"    {token:>7}  {pieces[at]!r:<14}  {is_trained}{said}")
        if len(ids) > TOKENS:
            lines.append(f"    and {len(ids) - TOKENS} more")
    return lines


def conclude(title: str, judged: Judged) -> str:
    """Return the one sentence."""
    result = judged.result
    steps = plural(len(judged.records), "step")
    if result is Result.FINDINGS:
        first = judged.findings[0]
        return f"{title}: {plural(len(judged.findings), 'finding')}; the first: {first.check}: {first.why}"
    if result is Result.UNCHECKED or not judged.records:
        return f"{title}: nothing was {_name_act(judged)}"
    if result is Result.PARTIAL:
        missing = ", ".join(judged.coverage.missing)
        return f"{title}: nothing found in {steps}, but {_name_act(judged)} in part: {missing} was not checked"
    return f"{title}: {steps} of your trainer are sound in all that was {_name_act(judged)}"


def as_document(title: str, judged: Judged, more: dict[str, Any]) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "command": title,
        "result": judged.result.word,
        "sentence": conclude(title, judged),
        "findings": [{"check": row.check, "why": row.why} for row in judged.findings],
        "checks": [vars(row) for row in judged.rows],
        "not_checked": [{"check": row.check, "why": row.why} for row in judged.rows if row.status == UNCHECKED],
        "not_rehearsed": [{"what": what, "why": why} for what, why in judged.unrehearsed],
        "changes": [{key: change[key] for key in ("key", "old", "new", "why")} for change in judged.changes],
        "errors": list(judged.broken),
        "watching_share": judged.cost,
        **more,
    }
