"""Convert pytest's reports of a test to its entry in the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import pytest

from pytest_rlregress.harness import properties
from pytest_rlregress.records.record_types import HarnessProperties, RawStatus, RecordedTest, Status

Report: TypeAlias = pytest.TestReport | pytest.CollectReport
Reports: TypeAlias = Sequence[Report]

#: Properties of a report that are JSON objects, as text: they are objects in a record too.
_OBJECTS = ("measured", "golden", "outcome")


def entry(name: str, file: str, reports: Reports, *, begun: bool) -> RecordedTest:
    """Build the entry of one test from its reports.

    Args:
        name: Its key, or that of a file which stands for its tests.
        file: Its file, as seen from the root folder.
        reports: All that pytest reported of it, of several attempts if it was run again.
        begun: Whether it was begun: it may have been interrupted before its first report.
    """
    *earlier, last = _attempts(reports)
    status, word = _status(last, begun)
    failed_before = any(_status(attempt, begun)[0] == "failed" for attempt in earlier)
    return RecordedTest(
        name=name,
        status=status,
        raw_status=word,
        duration=round(sum(getattr(report, "duration", 0) for report in last) * 1000),
        file_path=file,
        extra=_properties(last),
        retries=len(earlier),
        flaky=status == "passed" and failed_before if earlier else None,
        message="\n".join(filter(None, map(_message, last))),
        trace="\n".join(filter(None, map(_trace, last))),
    )


def _attempts(reports: Reports) -> list[Reports]:
    """Group a test's reports by attempt; each begins with its set-up."""
    starts = [index for index, report in enumerate(reports) if index and report.when == "setup"]
    return [reports[begin:end] for begin, end in zip([0, *starts], [*starts, len(reports)], strict=True)]


def _status(reports: Reports, begun: bool) -> tuple[Status, RawStatus]:
    """Return the format's status and pytest's own word."""
    failed = [report for report in reports if _failed(report)]
    if failed:
        return "failed", "error" if all(r.when in ("collect", "setup", "teardown") for r in failed) else "failed"
    decided = [report for report in reports if report.when != "teardown"]
    if not decided or (decided[-1].passed and decided[-1].when == "setup"):
        return ("other", "interrupted") if begun else ("pending", "pending")
    expected = hasattr(decided[-1], "wasxfail")
    if decided[-1].skipped:
        return ("other", "xfailed") if expected else ("skipped", "skipped")
    return "passed", "xpassed" if expected else "passed"


def _failed(report: Report) -> bool:
    return report.outcome not in ("passed", "skipped")  # plugins that run a test again call a failed attempt "rerun"


def _properties(reports: Reports) -> HarnessProperties:
    """Collect what the harness put on the reports of a test."""
    found: dict[str, Any] = {}
    for report in reports:
        found |= properties.read(report)
    found |= {name: _object(found[name]) for name in _OBJECTS if name in found}
    return msgspec.convert(found, HarnessProperties)


def _object(text: object) -> dict[str, Any]:
    """Parse a JSON object, empty if it isn't one; NaN and infinity become null."""
    try:
        return msgspec.convert(json.loads(str(text), parse_constant=lambda _: None), dict[str, Any])
    except ValueError:  # another plugin's
        return {}


def _message(report: Report) -> str:
    """Return in a line why a test failed or did not run."""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        return str(getattr(report, "wasxfail", "") or reason).removeprefix("Skipped: ")
    if not _failed(report):
        return ""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip().partition("\n")[0]


def _trace(report: Report) -> str:
    """Return the report's text where a test failed, or what came out where that was documented."""
    if _failed(report):
        return report.longreprtext
    return "\n".join(text for title, text in report.sections if title.endswith(": what came out"))
