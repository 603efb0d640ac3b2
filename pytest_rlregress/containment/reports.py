"""What a report amounts to, and the report of a test whose process did not live to write one."""

from __future__ import annotations

import re

import pytest

from pytest_rlregress.containment.client import Death
from pytest_rlregress.verdict import Outcome

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)', re.MULTILINE)
_LOG_CHARACTERS = 20_000


def outcome_of(report: pytest.TestReport, death: Death | None) -> Outcome:
    """What a report, and the end of its process, amount to."""
    phase = report.when or "call"
    log = "\n".join(text for _, text in report.sections)
    if death is not None and report.failed:
        frames = tuple(f"{frame['file']}:{frame['function']}" for frame in _FRAME.finditer(death.log))
        return Outcome(death.kind, phase, (), death.message, frames, death.signal, log)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return Outcome("skipped", phase, message=reason.removeprefix("Skipped: "))
    if report.failed:
        seen = getattr(report, "rlregress_exception", {})
        return Outcome(
            "failed",
            phase,
            tuple(seen.get("exceptions", ())),
            seen.get("message", report.longreprtext),
            tuple(seen.get("frames", ())),
            log=log,
        )
    return Outcome("passed", phase, log=log)


def restored(item: pytest.Item, report: pytest.TestReport) -> pytest.TestReport:
    """A report from a child: under the name its test has here, and with the tuples that JSON made lists."""
    report.nodeid, report.location = item.nodeid, item.location
    report.user_properties = [(name, value) for name, value in report.user_properties]
    if isinstance(report.longrepr, list):
        report.longrepr = tuple(report.longrepr)
    return report


def skipped(item: pytest.Item, reason: str) -> pytest.TestReport:
    """Report of a test that was not started."""
    path, line, _ = item.location
    return _report(item, "setup", "skipped", (path, line or 0, f"Skipped: {reason}"))


def died(
    item: pytest.Item, reports: list[pytest.TestReport], errors: list[str], death: Death | None
) -> pytest.TestReport:
    """Report of the phase in which the child ended, or in which the child's pytest met an error."""
    phases = ("setup", "call", "teardown")
    when = next((phase for phase in phases if all(report.when != phase for report in reports)), "teardown")
    report = _report(item, when, "failed", "\n".join([*errors, *([death.message] if death else [])]))
    if death and death.left:
        report.sections.append(("killed with the contained process", ", ".join(death.left)))
    if death and death.log:
        report.sections.append(("log of the contained process", death.log[-_LOG_CHARACTERS:]))
    return report


def _report(item: pytest.Item, when: str, outcome: str, longrepr: object) -> pytest.TestReport:
    keywords = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, outcome, longrepr, when)  # type: ignore[arg-type]
