"""Judge the reports of a contained test: they become an outcome, that a verdict, and the verdict stands on a report.

As all that the harness knows of a test it is in the report's user properties, so that junit, xdist and JSON carry it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_rlregress.containment import NO_DIAGNOSTICS, Death, Diagnostics
from pytest_rlregress.containment.post_mortem import LAST_LINES, describe_death, titled, without_runner
from pytest_rlregress.failures import fidelity, tried
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.causes import find_cause
from pytest_rlregress.failures.verdicts import EXPECTED, Judgement, Outcome, Verdict, bears, first_line, judge
from pytest_rlregress.harness.collection import stable_id
from pytest_rlregress.harness.items import ContainedTest, Side
from pytest_rlregress.harness.session import Session
from pytest_rlregress.records.expectations import find_expected

#: On a contained test once it has run: what came out, and the ids of the documented failures that a failed one shows.
#: Not on its report, which xdist can only send with plain values.
CONCLUDED: pytest.StashKey[tuple[Outcome, tuple[str, ...]]] = pytest.StashKey()

_PREFIX = "rlregress_"
CAPTURED = "Captured stdout"
#: What vllm_engine.start prints before vLLM's 60 lines, and after them.
START_UP = ("vLLM starts", "vLLM started")
_START_UP = re.compile("^{}\n(?:.*\n)*?{}\n".format(*START_UP), re.MULTILINE)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)', re.MULTILINE)


@dataclass
class Ran:
    """What came of running a test, or of not running it.

    Attributes:
        reports: Of its phases, each with the output that belongs to it.
        errors: What its child said of itself.
        captured: Titled output of the phases so far.
        death: How its process ended, if it did not live.
        diagnostics: What its other processes left.
        retired: Why its child is to be given up; "" if it is not.
        again: Whether it failed and is to be run once more.
        stopped: Why it was not run.
    """

    reports: list[pytest.TestReport] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    captured: list[tuple[str, str]] = field(default_factory=list)
    death: Death | None = None
    diagnostics: Diagnostics = NO_DIAGNOSTICS
    retired: str = ""
    again: bool = False
    stopped: Outcome | None = None

    def outcome(self, report: pytest.TestReport) -> Outcome:
        """Return the outcome that the deciding report amounts to."""
        return self.stopped or outcome_of(report, self.death, self.diagnostics)


def outcome_of(report: pytest.TestReport, death: Death | None, diagnostics: Diagnostics = NO_DIAGNOSTICS) -> Outcome:
    """Return the outcome that a report, and the end of its process, amount to.

    Args:
        report: The report that decides the test.
        death: How its process ended, if it did not live.
        diagnostics: What its other processes left, such as a Ray worker that died.
    """
    phase = report.when or "call"
    log = "\n".join(text for _, text in (*report.sections, *diagnostics.texts))
    if death is not None and report.failed:
        frames = tuple(f"{frame['file']}:{frame['function']}" for frame in _FRAME.finditer(death.log))
        return Outcome(death.kind, phase, (), death.message, frames, death.signal, f"{report.longreprtext}\n{log}")
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return Outcome("skipped", phase, message=reason.removeprefix("Skipped: "))
    if report.failed:
        seen = getattr(report, "rlregress_exception", {})
        return Outcome(
            kind="failed",
            phase=seen.get("phase", phase),
            exceptions=tuple(seen.get("exceptions", ())),
            message=seen.get("message", report.longreprtext),
            frames=tuple(seen.get("frames", ())),
            signal=diagnostics.signal,
            log=log,
            lacks=seen.get("lacks", ""),
            undriven=seen.get("undriven", ""),
            mistake=seen.get("mistake", ""),
        )
    return Outcome("passed", phase, log=log)


def conclude(test: ContainedTest, outcome: Outcome, report: pytest.TestReport, session: Session) -> None:
    """Judge a sided test and put the verdict on its report; name the documented failure a failed one looks like."""
    if test.on_hardware and not report.skipped:
        add_properties(report, hardware=session.profile.id)
    if test.side is not None and not hasattr(report, "wasxfail"):
        _judge(test, test.side, outcome, report, session)
    named: list[Failure] = []
    if report.failed:
        add_properties(report, cause=find_cause(outcome))
        from pytest_rlregress.diagnosis.findings import name_test  # only runs with a failure pay for it

        named = name_test(outcome, session.catalogue.values())
        add_to_text(report, [_entry(failure) for failure in named])
        known = read_properties(report)
        end = outcome.kind if outcome.kind in (Verdict.CRASHED, Verdict.HUNG) else ""
        word = known.get("verdict") or end or ("error" if report.when == "setup" else "failed")
        excuse(report, word, session, stable_id(test.item.nodeid, test.item.path), known.get("failure", ""))
    test.item.stash[CONCLUDED] = outcome, tuple(failure.id for failure in named)


def excuse(
    report: pytest.TestReport, word: str, session: Session, name: str, failure: str = "", component: str = ""
) -> None:
    """Let a failed report pass if the file of expectations has its word; it says so, and keeps what came out.

    Args:
        report: Of a test, or of a component's check.
        word: Its verdict, ``broken`` for a component, or pytest's word.
        session: The run.
        name: The test's name in records.
        failure: The failure that the test is about.
        component: The component that the check is about.
    """
    if not report.failed:
        return
    add_properties(report, bad=word)
    entry = find_expected(session.expectations, session.here, word, name, failure, component)
    if entry is None:
        return
    report.sections.append((f"{EXPECTED}: what came out", report.longreprtext))
    report.outcome, report.longrepr = "passed", None
    report.when = "call"  # a test of which only the set-up passed was interrupted
    add_properties(report, expected=f"{entry.issue} ({entry.place})")


def is_documented(test: ContainedTest, outcome: Outcome) -> bool:
    """Return whether an outcome bears a signature of the failure that a test is about."""
    return test.side is not None and bears(outcome, test.side.failure)


def _judge(test: ContainedTest, side: Side, outcome: Outcome, report: pytest.TestReport, session: Session) -> None:
    failure = side.failure
    stacks = tried.find_stacks(failure.id)
    releases = test.may_touch, session.stack.versions
    untried = tried.describe_untried(stacks, *releases)
    required = {*session.settings.require}
    judgement = judge(
        side.name,
        outcome,
        failure,
        expected=side.expected or failure.expects(session.profile.id, session.stack),
        gone=failure.gone(session.stack),
        strict=session.settings.strict,
        promised=test.item.get_closest_marker("hw") is not None and not test.unavailable,
        # Every test is driven on the lock, which is the first of them. On the others some are.
        driven=tried.was_driven(stacks[:1], *releases) or not required.isdisjoint(test.may_touch),
        untried=untried,
    )
    if judgement is None:
        add_properties(report, note=outcome.mistake or f"in set-up: {first_line(outcome)}")
        add_to_text(report, [("no verdict", outcome.mistake or "the test did not come as far as the act")])
        return
    _mark(report, judgement, test.item)
    add_properties(
        report,
        failure=failure.id,
        side=side.name,
        verdict=judgement.verdict.value,
        note=judgement.note,
        untried=untried if judgement.verdict.fails else "",
        subject=session.settings.subjects.get(failure.subject, failure.subject) if failure.subject else "",
        components=",".join(failure.components),
        fidelity=fidelity.of_test(side.fidelity, stand_ins=read_properties(report).get("stand_ins", "")),
    )


def _entry(failure: Failure) -> tuple[str, str]:
    """Return a titled text for a failed test that bears a documented signature."""
    lines = [failure.title, f"seen on: {failure.seen_on}", f"cause: {failure.cause}", f"remedy: {failure.remedy}"]
    return f"this looks like {failure.id}", "\n".join(lines)


def _mark(report: pytest.TestReport, judgement: Judgement, item: pytest.Item) -> None:
    """Make a report's outcome agree with the verdict, keeping what was seen as a section."""
    if report.skipped and not judgement.fails:
        return
    if judgement.verdict is Verdict.UNAVAILABLE and not judgement.fails:
        report.sections.append(("what came out", report.longreprtext))
        make_skipped(report, item, judgement.note)
    elif report.failed and not judgement.fails:
        report.sections.append((f"{judgement.verdict}: what came out", report.longreprtext))
        report.outcome, report.longrepr = "passed", None
    elif judgement.fails:
        if report.failed:
            report.sections.insert(0, (judgement.verdict.value, judgement.note))
        else:
            report.outcome, report.longrepr = "failed", f"{judgement.verdict}: {judgement.note}"


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


def report_end(item: pytest.Item, ran: Ran) -> pytest.TestReport:
    """Make the report of the phase in which the child ended, or in which the child's pytest met an error.

    Its text has the stacks and all else that is known, since the text is what junit files carry.
    """
    over = {report.when for report in ran.reports if not is_subtest(report)}
    when = next((phase for phase in ("setup", "call") if phase not in over), "teardown")
    told, output = describe_death(ran.death) if ran.death else ("", "")
    text = "\n".join([*ran.errors, told] if told else ran.errors)
    try:  # summaries show the first line, and on CI they don't cut it
        pytest.fail(text, pytrace=False)
    except pytest.fail.Exception as failure:
        longrepr: Any = pytest.ExceptionInfo.from_exception(failure).getrepr(style="value")
    path, line, _ = item.location
    longrepr.reprcrash.path, longrepr.reprcrash.lineno = path, (line or 0) + 1
    longrepr.reprcrash.message = text.partition("\n")[0]
    report = _report(item, when, "failed", longrepr)
    if ran.death is None:
        return report
    if ran.reports:  # what the test recorded itself
        report.user_properties = list(ran.reports[-1].user_properties)
    report.duration = max(0.0, ran.death.seconds - sum(report.duration for report in ran.reports))
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
