"""Judge the reports of a contained test: they become an outcome, that a verdict, and the verdict stands on a report."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from pytest_rlregress.containment import NO_DIAGNOSTICS, Death, Diagnostics
from pytest_rlregress.failures import fidelity, tried
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.failures.causes import find_cause
from pytest_rlregress.failures.verdicts import EXPECTED, Judgement, Outcome, Verdict, bears, first_line, judge
from pytest_rlregress.harness.collection import stable_id
from pytest_rlregress.harness.items import ContainedTest, Side
from pytest_rlregress.harness.reports import add_properties, add_to_text, make_skipped, read_properties
from pytest_rlregress.harness.session import Session
from pytest_rlregress.records.expectations import find_expected

#: On a contained test once it has run: what came out, and the ids of the documented failures that a failed one shows.
#: Not on its report, which xdist can only send with plain values.
CONCLUDED: pytest.StashKey[tuple[Outcome, tuple[str, ...]]] = pytest.StashKey()

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
    """Return whether an outcome of its act bears a signature of the failure that a test is about."""
    return test.side is not None and outcome.phase == "call" and bears(outcome, test.side.failure)


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
