"""Write what an audit found, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from pytest_rlregress.audit.findings import Finding
from pytest_rlregress.audit.whole import AuditReport
from pytest_rlregress.util.text import checked_lines, plural, wrapped


def as_json(file: str, about: Mapping[str, str], report: AuditReport) -> str:
    """Write one JSON object; rows and tokens are from 0."""
    return json.dumps(
        {
            "file": file,
            **about,
            "rows": report.rows,
            "trained_tokens": report.tokens,
            "findings": [asdict(one) for one in report.findings],
            "notes": report.notes,
            "checked": report.checked,
            "not_checked": [{"check": check, "why": why} for check, why in report.unchecked.items()],
        },
        indent=2,
        ensure_ascii=False,
    )


def as_text(file: str, about: Mapping[str, str], report: AuditReport) -> str:
    """Write the findings, then what the batch is, what was measured, what was checked and what was not."""
    lines = []
    for one in report.findings:
        lines += [f"{one.check}: {one.column}, {_extent(one, report.rows)}", *wrapped(one.what, "  ", "  ")]
        for place in one.places:
            token = "" if place.token is None else f", token {place.token}"
            lines += wrapped(f"row {place.row}{token}{f': {place.text}' if place.text else ''}", "    ", "      ")
        if one.rows > len(one.places):
            lines.append(f"    and {one.rows - len(one.places):,} more")
        lines += [*wrapped(f"instead: {one.instead}", "  ", "    "), ""]
    found = plural(len(report.findings), "finding") if report.findings else "nothing found"
    kind = ", ".join(filter(None, [about["form"], about["trainer"] and f"names of {about['trainer']}"]))
    tokens = f", {report.tokens:,} trained tokens" if report.tokens else ""
    lines += wrapped(f"{file} ({kind}), {report.rows:,} rows{tokens}: {found}", rest="  ")
    for note in report.notes:
        lines += wrapped(note, rest="  ")
    return "\n".join([*lines, *checked_lines(report.checked, report.unchecked.items())])


def _extent(one: Finding, rows: int) -> str:
    every = "every row" if one.rows == rows else plural(one.rows, "row")
    return f"{plural(one.tokens, 'token')} in {every}" if one.tokens else every
