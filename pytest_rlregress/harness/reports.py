"""The reports of a contained test: made, read, folded into one, and written on.

All that the harness knows of a test is in a report's user properties, so that junit, xdist and JSON carry it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_rlregress.containment import Death
from pytest_rlregress.containment.post_mortem import LAST_LINES, describe_death, titled, without_runner

_PREFIX = "rlregress_"
CAPTURED = "Captured stdout"
#: What vllm_engine.start prints before vLLM's 60 lines, and after them.
START_UP = ("vLLM starts", "vLLM started")
_START_UP = re.compile("^{}\n(?:.*\n)*?{}\n".format(*START_UP), re.MULTILINE)


def decides(report: pytest.TestReport) -> bool:
    """Return whether a report is the one that carries its test's verdict."""
    whole = not is_subtest(report)
    return whole and (report.when == "call" or (report.when == "setup" and not report.passed))


def is_subtest(report: pytest.TestReport) -> bool:
    """Return whether a report is of a part of a test: pytest 9's fixture ``subtests``, ``unittest``'s ``subTest``."""
    return hasattr(report, "context")


def load_report(config: pytest.Config, data: object) -> pytest.TestReport:
    """Return a report that was sent as JSON, which made lists of its tuples."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    report.user_properties = [(name, value) for name, value in report.user_properties]
    if isinstance(report.longrepr, list):
        report.longrepr = tuple(report.longrepr)
    return report


def report_skip(item: pytest.Item, reason: str) -> pytest.TestReport:
    """Make the report of a test that was not started."""
    report = _report(item, "setup", "skipped", None)
    make_skipped(report, item, reason)
    return report


def make_skipped(report: pytest.TestReport, item: pytest.Item, reason: str) -> None:
    """Let a report say that its test was skipped, whatever it said before."""
    path, line, _ = item.location
    report.outcome, report.longrepr = "skipped", (path, line or 0, f"Skipped: {reason}")


def report_teardown(item: pytest.Item, last: pytest.TestReport) -> pytest.TestReport:
    """Make the report of the teardown of a test that came to none, such as one whose process died."""
    report = _report(item, "teardown", "passed", None)
    report.user_properties = list(last.user_properties)
    return report


def report_end(
    item: pytest.Item, reports: Sequence[pytest.TestReport], errors: Sequence[str], death: Death | None
) -> pytest.TestReport:
    """Make the report of the phase in which the child ended, or in which the child's pytest met an error.

    Its text has the stacks and all else that is known, since the text is what junit files carry.

    Args:
        item: The test.
        reports: Of its phases so far.
        errors: What its child said of itself.
        death: How its process ended, if it did not live.
    """
    over = {report.when for report in reports if not is_subtest(report)}
    when = next((phase for phase in ("setup", "call") if phase not in over), "teardown")
    told, output = describe_death(death) if death else ("", "")
    text = "\n".join([*errors, *([told] if told else [])])
    try:  # summaries show the first line, and on CI they don't cut it
        pytest.fail(text, pytrace=False)
    except pytest.fail.Exception as failure:
        longrepr: Any = pytest.ExceptionInfo.from_exception(failure).getrepr(style="value")
    path, line, _ = item.location
    longrepr.reprcrash.path, longrepr.reprcrash.lineno = path, (line or 0) + 1
    longrepr.reprcrash.message = text.partition("\n")[0]
    report = _report(item, when, "failed", longrepr)
    if death is None:
        return report
    if reports:  # what the test recorded itself
        report.user_properties = list(reports[-1].user_properties)
    report.duration = max(0.0, death.seconds - sum(report.duration for report in reports))
    if len(output.splitlines()) > LAST_LINES:
        report.sections.append((f"{CAPTURED} {when}", output))
    return report


def _report(item: pytest.Item, when: str, outcome: str, longrepr: object) -> pytest.TestReport:
    keywords = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(
        item.nodeid,
        item.location,
        keywords,  # type: ignore[arg-type]
        outcome,  # type: ignore[arg-type]
        longrepr,  # type: ignore[arg-type]
        when,  # type: ignore[arg-type]
        user_properties=list(item.user_properties),
    )


def fold_subtests(reports: Sequence[pytest.TestReport], *, judged: bool) -> list[pytest.TestReport]:
    """Return the reports of a test in which a failed part fails the whole.

    Args:
        reports: All of one test, its parts' before its own.
        judged: Whether the test gets a verdict: then it fails as the first of its parts that failed, and only its own
            reports are left, for it is one test.
    """
    failed = [report for report in reports if is_subtest(report) and report.failed]
    whole = next((report for report in reports if report.when == "call" and not is_subtest(report)), None)
    if failed and whole is not None and whole.passed:
        whole.outcome = "failed"
        whole.longrepr = f"contains {len(failed)} failed subtest{'s' if len(failed) > 1 else ''}"
        if judged:
            whole.longrepr = failed[0].longrepr
            whole.rlregress_exception = getattr(failed[0], "rlregress_exception", {})  # type: ignore[attr-defined]
            del failed[0]
    if judged and whole is not None and whole.failed:
        add_to_text(whole, [("another failed subtest", part.longreprtext) for part in failed])
    return [report for report in reports if not judged or not is_subtest(report)]


def add_to_text(report: pytest.TestReport, sections: Sequence[tuple[str, str]]) -> None:
    """Put titled texts into the text of a failed report, which terminals and junit files show."""
    longrepr: Any = report.longrepr
    for title, text in sections:
        if isinstance(longrepr, str):
            longrepr += f"\n{titled(title, text)}"
        else:
            longrepr.addsection(title, without_runner(text))
    report.longrepr = longrepr


def drop_output(report: pytest.TestReport, *, printed: bool) -> None:
    """Take out of a report the log of engines that started, which says nothing of what failed with them.

    Under ``-s`` all else that the test wrote has been ``printed`` on the terminal, and goes too.
    """
    texts = [(title, _START_UP.sub("", text)) for title, text in report.sections]
    report.sections = [(title, text) for title, text in texts if text and not (printed and title.startswith(CAPTURED))]


def add_properties(to: pytest.TestReport | pytest.Item, **values: str) -> None:
    """Add values to a report, or to a test and so to its reports, each under its name; an empty one is left out."""
    to.user_properties += [(_PREFIX + name, value) for name, value in values.items() if value]


def read_properties(report: Any) -> dict[str, str]:
    """Read a report's values by name: those of a verdict, and as JSON what was measured. A collection's has none."""
    return {
        name.removeprefix(_PREFIX): str(value)
        for name, value in getattr(report, "user_properties", ())
        if name.startswith(_PREFIX)
    }


def take_property(report: pytest.TestReport | pytest.Item, name: str) -> str | None:
    """Remove a value from a report, or from a test, and return it; None if it has none."""
    found = read_properties(report).get(name)
    report.user_properties[:] = [(key, value) for key, value in report.user_properties if key != _PREFIX + name]
    return found
