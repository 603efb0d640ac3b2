"""A row of the table that a rehearsal prints."""

from __future__ import annotations

from dataclasses import dataclass

OK, FINDING, UNCHECKED, STUBBED = "ok", "finding", "not checked", "stubbed"


@dataclass(frozen=True)
class CheckRow:
    """A check: what was measured, what is allowed, and how it ended."""

    check: str
    value: str
    limit: str
    status: str
    why: str = ""
