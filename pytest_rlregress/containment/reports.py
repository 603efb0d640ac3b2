"""Takes what a child sends, and writes the report of a test whose process did not live to write one."""

from __future__ import annotations

import builtins
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pytest_rlregress.containment import NO_DIAGNOSTICS, Death, Diagnostics

_LAST_LINES = 10
_CAPTURED = "Captured stdout"
#: What vllm_engine.start prints before vLLM's 60 lines, and after them.
START_UP = ("vLLM starts", "vLLM started")
_START_UP = re.compile("^{}\n(?:.*\n)*?{}\n".format(*START_UP), re.MULTILINE)
# What runs the test, in faulthandler's stacks and in py-spy's.
_RUNNER = re.compile(
    r"(?:^.*(?:/_pytest/|/pluggy/|/pytest_rlregress/containment/|File \"<string>\""
    r"|\((?:_pytest|pluggy|pytest_rlregress/containment)/).*\n)+",
    re.MULTILINE,
)
# Where faulthandler begins: for a fault, for a thread of a process that hangs.
_STACK = re.compile(r"^(Fatal Python error: |Thread 0x|Current thread 0x)", re.MULTILINE)


def decides(report: pytest.TestReport) -> bool:
    """Return whether a report is the one that carries its test's verdict."""
    whole = not is_subtest(report)
    return whole and (report.when == "call" or (report.when == "setup" and not report.passed))


def is_subtest(report: pytest.TestReport) -> bool:
    """Return whether a report is of a part of a test: pytest 9's fixture ``subtests``, ``unittest``'s ``subTest``."""
    return hasattr(report, "context")


class ChildMessages:
    """Collects what a child sends while it runs one test: reports, with the output that belongs to each, and errors."""

    def __init__(self, item: pytest.Item, say: Callable[[str], None], note: Callable[[str], None]) -> None:
        self.reports: list[pytest.TestReport] = []
        self.errors: list[str] = []
        #: Why the child is to be given up after this test; "" if it is not.
        self.retired = ""
        self._item, self._say, self._note = item, say, note
        self._captured: list[tuple[str, str]] = []

    def __call__(self, kind: str, value: Any) -> None:
        """Take one message.

        Raises:
            KeyboardInterrupt, pytest.exit.Exception: The test asked for the end of the run.
        """
        hook = self._item.config.hook
        if kind == "report":
            data, output = value
            report = received(self._item.config, data)
            report.nodeid, report.location = self._item.nodeid, self._item.location  # the names that it has here
            self._captured += [(f"{_CAPTURED} {report.when}", output)] if output else []
            report.sections = [*self._captured, *((title, text) for title, text in report.sections)]
            self.reports.append(report)
        elif kind == "warning":
            *about, nodeid, location = value
            recorded = {"nodeid": nodeid, "when": "runtest", "location": location}
            hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": warning(*about), **recorded})
        elif kind == "say":
            self._say(value)
        elif kind == "note":
            self._note(value)
        elif kind == "exit":
            message, returncode = value
            if message is None:
                raise KeyboardInterrupt(f"in {self._item.nodeid}")
            pytest.exit(message, returncode)
        elif kind == "retire":
            self.retired = value
        elif kind == "error":
            self.errors.append(value)


def received(config: pytest.Config, data: object) -> pytest.TestReport:
    """Return a report that was sent as JSON, which made lists of its tuples."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    report.user_properties = [(name, value) for name, value in report.user_properties]
    if isinstance(report.longrepr, list):
        report.longrepr = tuple(report.longrepr)
    return report


def warning(name: str, text: str, filename: str, lineno: int) -> warnings.WarningMessage:
    """Return a warning from a child, without importing the module that its category comes from."""
    category: Any = getattr(builtins, name.removeprefix("builtins."), None)
    if category is None:
        category, text = UserWarning, f"{name}: {text}"
    return warnings.WarningMessage(category(text), category, filename, lineno)


def skipped(item: pytest.Item, reason: str) -> pytest.TestReport:
    """Report of a test that was not started."""
    report = _report(item, "setup", "skipped", None)
    make_skipped(report, item, reason)
    return report


def make_skipped(report: pytest.TestReport, item: pytest.Item, reason: str) -> None:
    """Let a report say that its test was skipped, whatever it said before."""
    path, line, _ = item.location
    report.outcome, report.longrepr = "skipped", (path, line or 0, f"Skipped: {reason}")


def torn_down(item: pytest.Item, last: pytest.TestReport) -> pytest.TestReport:
    """Report of the teardown of a test that came to none, such as one whose process died."""
    report = _report(item, "teardown", "passed", None)
    report.user_properties = list(last.user_properties)
    return report


def died(item: pytest.Item, messages: ChildMessages, death: Death | None) -> pytest.TestReport:
    """Report of the phase in which the child ended, or in which the child's pytest met an error.

    Its text has the stacks and all else that is known, since the text is what junit files carry.
    """
    over = {report.when for report in messages.reports if not is_subtest(report)}
    when = next((phase for phase in ("setup", "call") if phase not in over), "teardown")
    if death is None:
        return _report(item, when, "failed", _failure(item, "\n".join(messages.errors)))
    text, output = describe_death(death)
    report = _report(item, when, "failed", _failure(item, "\n".join([*messages.errors, text])))
    if messages.reports:  # what the test recorded itself
        report.user_properties = list(messages.reports[-1].user_properties)
    report.duration = max(0.0, death.seconds - sum(report.duration for report in messages.reports))
    if len(output.splitlines()) > _LAST_LINES:
        report.sections.append((f"{_CAPTURED} {when}", output))
    return report


def describe_death(death: Death) -> tuple[str, str]:
    """Describe a death in one text, with the last lines of its output; return the whole output beside it."""
    found = _STACK.search(death.log)
    output, stack = (death.log[: found.start()], death.log[found.start() :]) if found else (death.log, "")
    last = "\n".join(output.splitlines()[-_LAST_LINES:])  # such as what abort() was called for
    sections = [*([("last output", last)] if last else []), *death.sections]
    text = "\n".join(part for part in (death.message, _of_the_test(stack)) if part)
    return "\n".join([text, *(_titled(title, section) for title, section in sections)]), output


def drop_output(report: pytest.TestReport) -> None:
    """Take what the test printed out of its report: under ``-s`` it has been on the terminal."""
    report.sections = [(title, text) for title, text in report.sections if not title.startswith(_CAPTURED)]


def drop_start_up(report: pytest.TestReport) -> None:
    """Take the start-up log of engines that started from a report: it says nothing of what failed with them."""
    texts = [(title, _START_UP.sub("", text)) for title, text in report.sections]
    report.sections = [(title, text) for title, text in texts if text]


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
            longrepr += f"\n{_titled(title, text)}"
        else:
            longrepr.addsection(title, _of_the_test(text))
    report.longrepr = longrepr


def _failure(item: pytest.Item, text: str) -> object:
    """Make a test's failure of a text. Summaries show its first line, and on CI they don't cut it."""
    try:
        pytest.fail(text, pytrace=False)
    except pytest.fail.Exception as failure:
        longrepr: Any = pytest.ExceptionInfo.from_exception(failure).getrepr(style="value")
    path, line, _ = item.location
    longrepr.reprcrash.path, longrepr.reprcrash.lineno = path, (line or 0) + 1
    longrepr.reprcrash.message = text.partition("\n")[0]
    return longrepr


def _titled(title: str, text: str) -> str:
    return f"{f' {title} ':-^80}\n{_of_the_test(text)}"


def _of_the_test(stacks: str) -> str:
    """Stacks without the frames of pytest, which are the same in every test."""
    return _RUNNER.sub("        … pytest\n", f"{stacks.rstrip()}\n").rstrip()


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


def add_diagnostics(reports: Sequence[pytest.TestReport], found: Diagnostics) -> Diagnostics:
    """Give a failed test what its other processes left; that, or nothing where none failed."""
    failed = next((report for report in reports if report.failed), None)
    if failed is None:
        return NO_DIAGNOSTICS
    add_to_text(failed, found.texts)
    return found
