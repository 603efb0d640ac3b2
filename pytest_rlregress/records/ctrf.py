"""Convert pytest's reports to the Common Test Report Format, https://ctrf.io. docs/record.md has the keys."""

from __future__ import annotations

import json
import platform
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_rlregress import properties

if TYPE_CHECKING:  # whoever reads a record needs no pytest
    import pytest

    Report: TypeAlias = pytest.TestReport | pytest.CollectReport
    Reports: TypeAlias = Sequence[Report]

#: The version of the format: the one that its reference implementation reads.
SPECIFICATION = "0.0.0"
_STATUSES = ("passed", "failed", "skipped", "pending", "other")
#: Properties of a report that are JSON objects, as text: they are objects in a record too.
_OBJECTS = frozenset({"measured", "golden", "peak_memory"})


def report(
    tests: Sequence[Mapping[str, Any]], *, start: int, stop: int, commit: str | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the record of a run without tests.

    Args:
        tests: The entries of its tests.
        start: When it began, in ms since 1970.
        stop: When it ended.
        commit: What the tests are a checkout of, if they are.
        extra: What the format has no place for.
    """
    begun = {
        "reportFormat": "CTRF",
        "specVersion": SPECIFICATION,
        "reportId": str(uuid.uuid4()),
        "timestamp": "",
        "generatedBy": f"pytest-rlregress {metadata.version('pytest-rlregress')}",
        "results": {
            "tool": {"name": "pytest", "version": metadata.version("pytest")},
            "summary": {"tests": 0, **dict.fromkeys(_STATUSES, 0), "start": start, "stop": start},
            "tests": [],
            "environment": {
                "osPlatform": sys.platform,
                "osRelease": platform.release(),
                "osVersion": platform.version(),
                **({"commit": commit} if commit else {}),
            },
            "extra": {},
        },
    }
    return ended(begun, tests, stop=stop, extra=extra)


def ended(
    begun: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], *, stop: int, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Complete a record: with these tests, ended at ``stop``."""
    counts = Counter(test["status"] for test in tests)
    summary = {
        **begun["results"]["summary"],
        "tests": len(tests),
        **{status: counts[status] for status in _STATUSES},
        "stop": stop,
    }
    return {
        **begun,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(stop / 1000)),
        "results": {**begun["results"], "summary": summary, "tests": tests, "extra": extra},
    }


def entry(name: str, file: str, reports: Reports, *, begun: bool) -> dict[str, Any]:
    """Build the entry of one test from its reports.

    Args:
        name: Its key, or that of a file which stands for its tests.
        file: Its file, as seen from the root folder.
        reports: All that pytest reported of it, of several attempts if it was run again.
        begun: Whether it was begun: it may have been interrupted before its first report.
    """
    attempts = _attempts(reports)
    last = attempts[-1]
    status, word = _status(last, begun)
    found: dict[str, Any] = {
        "name": name,
        "status": status,
        "rawStatus": word,
        "duration": round(sum(getattr(report, "duration", 0) for report in last) * 1000),
        "filePath": file,
        "extra": _properties(last),
    }
    if len(attempts) > 1:
        earlier = [_status(attempt, begun)[0] for attempt in attempts[:-1]]
        found["retries"] = len(earlier)
        found["flaky"] = status == "passed" and "failed" in earlier
    found["message"] = "\n".join(filter(None, (_message(report) for report in last)))
    found["trace"] = "\n".join(filter(None, (_trace(report) for report in last)))
    return {field: value for field, value in found.items() if value not in ("", {})}


def libraries(report: Report) -> dict[str, Any]:
    """Return the native libraries that a report is the first to name, by family."""
    return _object(properties.read(report).get("libraries"))


def _attempts(reports: Reports) -> list[Reports]:
    """Group a test's reports by attempt; each begins with its set-up."""
    starts = [index for index, report in enumerate(reports) if index and report.when == "setup"]
    return [reports[begin:end] for begin, end in zip([0, *starts], [*starts, len(reports)], strict=True)]


def _status(reports: Reports, begun: bool) -> tuple[str, str]:
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


def _properties(reports: Reports) -> dict[str, Any]:
    """Collect the harness' properties of a test: failure, side, verdict, note, subject, hardware, measurements."""
    found: dict[str, Any] = {}
    for report in reports:
        for field, value in properties.read(report).items():
            found[field] = _object(value) if field in _OBJECTS else value
    found.pop("libraries", None)
    return {field: value for field, value in found.items() if value != {}}


def _object(text: object) -> dict[str, Any]:
    """Parse a JSON object, empty if it is none; what is no finite number becomes null."""
    try:
        found = json.loads(str(text), parse_constant=lambda _: None)
    except ValueError:  # another plugin's
        return {}
    return found if isinstance(found, dict) else {}


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
