"""The contained tests of one pytest process: each runs in the child of its group, and its reports are logged here."""

from __future__ import annotations

import builtins
import json
import re
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress.containment import ChildGroup, Death, Next, RunTest, key_of
from pytest_rlregress.containment.pool import ContainmentError, Pool
from pytest_rlregress.failures.verdicts import Outcome
from pytest_rlregress.harness import component_checks
from pytest_rlregress.harness.checks import ComponentChecks, is_check, warm_modules
from pytest_rlregress.harness.items import ContainedTest, contained, find
from pytest_rlregress.harness.judging import Ran, conclude
from pytest_rlregress.harness.reports import (
    CAPTURED,
    add_properties,
    add_to_text,
    decides,
    drop_output,
    fold_subtests,
    load_report,
    report_end,
    report_skip,
    report_teardown,
)
from pytest_rlregress.harness.session import Session
from pytest_rlregress.util.files import write_whole

#: What every child's pytest imports of the harness.
_PRELOADED = tuple(f"pytest_rlregress.harness.{name}" for name in ("inline", "items", "warm_catalogue"))
#: The checks of components that start nothing: their child stays beside the others, and locks no GPU.
_CHECKS = ChildGroup(component_checks.GROUP)
_TAKEN_OVER = "no report of this test: a hook of a plugin or a conftest.py took it over (pytest_runtest_protocol?)"


class Protocol:
    """Runs the contained tests of one pytest process, and holds their children.

    Args:
        config: The process' config.
        session: What the run knows.

    Attributes:
        pool: The children.
    """

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config, self._session = config, session
        self.pool = Pool(config, session.gpus, session.say, _PRELOADED)
        self._warm: tuple[str, ...] = ()
        self._running = ""
        self._stopped = False
        self._checks: ComponentChecks  # from when the tests are known

    def begin(self, pytest_session: pytest.Session) -> None:
        """Start importing the stack, in the warm server, while other tests run: all tests are collected."""
        tests = contained(pytest_session)
        self._checks = ComponentChecks(pytest_session, self._session, self._run_check)
        self.pool.imported()
        if file := getattr(self._config, "workerinput", {}).get("rlregress_groups"):
            groups = {test.item.nodeid: test.group.name for test in tests}
            write_whole(Path(file), json.dumps(groups))  # xdist's controller reads it; every worker collects the same
        runnable = [test for test in tests if not test.group.fresh and not test.unavailable]
        self._warm = warm_modules({name for test in runnable for name in test.may_touch})
        if self._warm and not self._config.option.collectonly:
            self.pool.warm(self._warm)

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a contained test from its first report to its last; None for others, which go on as always."""
        test = find(item)
        if test is None:
            if nextitem is not None and find(nextitem):
                # The next one sets up nothing in this process: only session fixtures may stay for those after it.
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=item.session)
                return True
            return None
        self._running = item.nodeid
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if test.unavailable:
            stopped: Outcome | None = Outcome("skipped", message=test.unavailable)
        else:
            stopped = self._checks.stops(test)
        self._log(test, _not_run(test, stopped) if stopped else self._run_to_the_end(test, nextitem))
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._running = ""
        return True

    def _run_to_the_end(self, test: ContainedTest, nextitem: pytest.Item | None) -> Ran:
        """Run a test in its child; where it fails, as often as pytest-rerunfailures says, each time in another one."""
        reruns, delay = _reruns_of(test)
        while True:
            ran = self._run_in_child(test, test.group, self._following(test, nextitem), reruns)
            failed = next((report for report in ran.reports if report.failed), None)
            if failed is not None and (stops := self._checks.explains(test, ran.outcome(failed))):
                return _not_run(test, stops)
            if not ran.again:
                return ran
            self._log_rerun(test, ran)
            reruns -= 1
            time.sleep(delay)

    def _following(self, test: ContainedTest, nextitem: pytest.Item | None) -> str | Next:
        """Return the key of the next test in the same child."""
        if test.group.alone:
            return Next.NOTHING
        items = test.item.session.items
        xdist = hasattr(self._config, "workerinput")  # a worker collects all tests, and runs those it is given
        later = [nextitem] if xdist else items[items.index(test.item) + 1 :]
        for mate in (find(item) for item in later if item is not None):
            if mate and mate.group == test.group and not mate.unavailable and self._checks.stops(mate) is None:
                return key_of(mate.item)
        return Next.UNKNOWN if xdist else Next.NOTHING

    def _run_check(self, check: ContainedTest, host: ContainedTest | None) -> Ran:
        """Run the check of a component in a test's child or, without one, in that of all checks.

        One that starts something there gets a child that ends with it.
        """
        if host is not None and not host.group.alone:
            return self._run_in_child(check, host.group, Next.UNKNOWN, 0)
        if any(fixture.starts for fixture in check.fixtures):
            return self._run_in_child(check, replace(_CHECKS, alone=True), Next.NOTHING, 0)
        return self._run_in_child(check, _CHECKS, Next.UNKNOWN, 0)

    def _run_in_child(self, test: ContainedTest, group: ChildGroup, following: str | Next, reruns: int) -> Ran:
        """Run a test in the child of a group, which is started if there is none.

        Args:
            test: The test.
            group: Whose child it is.
            following: The key of the test that follows there; after the last one the child is ended.
            reruns: How often it may be run again if it fails.
        """
        if not group.alone and group != _CHECKS:
            self.pool.stop_groups(but=(group, _CHECKS))
        mates = [other for other in contained(test.item.session) if other.group == group]
        modules = self._warm if is_check(test) or any(mate.may_touch for mate in mates) else ()
        gpus = 0 if group == _CHECKS else max(one.gpus for one in (test, *mates) if one is test or not one.unavailable)
        files = [mate.item.path for mate in mates]
        if is_check(test) or not group.alone:
            files.append(component_checks.FILE)
        ran = Ran()
        receive = partial(self._receive, test.item, ran)
        begun, waited = time.monotonic(), 0.0
        try:
            child = self.pool.child(group, files, modules, gpus)
            ran.death = child.await_ready(receive, self._session.limits)
            waited = time.monotonic() - begun
            ran.death = ran.death or child.run(RunTest(key_of(test.item), following), test.limits, receive)
            if (failed := next((report for report in ran.reports if report.failed), None)) is not None:
                ran.diagnostics = child.diagnostics
                add_to_text(failed, ran.diagnostics.texts)
            repeatable = ran.death is not None or any(_may_run_again(test.item, report) for report in ran.reports)
            ran.again = reruns > 0 and repeatable
            if ran.death is not None:
                self.pool.drop(group)
            elif ran.retired:
                self._session.say(f"{ran.retired}. Its process is given up, the next test gets a new one.")
                self.pool.stop(group, lambda kind, value: None)  # whatever comes of its fixtures' teardown
            elif following is Next.NOTHING or ran.again:
                ran.death = self.pool.stop(group, receive)
        except (ContainmentError, OSError, ValueError) as error:  # such as a full disk
            ran.death = Death("crashed", None, f"could not be contained: {error}", "")
        if ran.death is None and not ran.reports and not ran.errors:
            ran.errors.append(_TAKEN_OVER)
        if ran.death is not None or ran.errors:
            ran.reports.append(report_end(test.item, ran.reports, ran.errors, ran.death))
        ran.reports[0].duration += waited  # the imports of the stack, for --durations
        return ran

    def _receive(self, item: pytest.Item, ran: Ran, kind: str, value: Any) -> None:
        """Take one message of the child that runs a test.

        Raises:
            KeyboardInterrupt, pytest.exit.Exception: The test asked for the end of the run.
        """
        if kind == "report":
            data, output = value
            report = load_report(self._config, data)
            report.nodeid, report.location = item.nodeid, item.location  # the names that it has here
            ran.captured += [(f"{CAPTURED} {report.when}", output)] if output else []
            report.sections = [*ran.captured, *((title, text) for title, text in report.sections)]
            ran.reports.append(report)
        elif kind == "warning":
            *about, nodeid, location = value
            recorded = {"nodeid": nodeid, "when": "runtest", "location": location}
            warned = self._config.hook.pytest_warning_recorded
            warned.call_historic(kwargs={"warning_message": _warning(*about), **recorded})
        elif kind in ("say", "note"):
            self._session.say(value, once=kind == "note")  # every child would say a note
        elif kind == "exit":
            message, returncode = value
            if message is None:
                raise KeyboardInterrupt(f"in {item.nodeid}")
            pytest.exit(message, returncode)
        elif kind == "retire":
            ran.retired = value
        elif kind == "error":
            ran.errors.append(value)

    def _log_rerun(self, test: ContainedTest, ran: Ran) -> None:
        """Log a failure that is not the last word as pytest-rerunfailures does: what follows it is left out."""
        for report in fold_subtests(ran.reports, judged=True):
            failed = report.failed
            if failed:
                report.outcome = "rerun"  # type: ignore[assignment]
            test.item.ihook.pytest_runtest_logreport(report=report)
            if failed:
                return

    def _log(self, test: ContainedTest, ran: Ran) -> None:
        """Hand the reports on; the one that decides the test carries the verdict, and so do those after."""
        reports = fold_subtests(ran.reports, judged=test.side is not None)
        if reports[-1].when != "teardown":  # junit reads the properties of that one, and there was none
            reports.append(report_teardown(test.item, reports[-1]))
        verdict: list[tuple[str, object]] = []
        for report in reports:
            report.user_properties.extend(verdict)
            if decides(report):
                before = len(report.user_properties)
                conclude(test, ran.outcome(report), report, self._session)
                verdict = report.user_properties[before:]
        if made := self._checks.take_reports():
            add_properties(reports[0], checks=json.dumps(made))
        for report in reports:
            drop_output(report, printed=self._config.getoption("capture", "no") == "no")
            test.item.ihook.pytest_runtest_logreport(report=report)

    def interrupt(self) -> None:
        """Give children seconds to tear down, not the time they want: for Ctrl-C, SIGTERM or ``pytest.exit()``."""
        self._stopped = True
        if self._running:
            self._session.say(f"interrupted while {self._running} ran")

    def close(self) -> None:
        """End all children; the second time there is nothing to do."""
        self.pool.close(politely=not self._stopped)


def _warning(name: str, text: str, filename: str, lineno: int) -> warnings.WarningMessage:
    """Return a warning from a child, without importing the module that its category comes from."""
    category: Any = getattr(builtins, name.removeprefix("builtins."), None)
    if category is None:
        category, text = UserWarning, f"{name}: {text}"
    return warnings.WarningMessage(category(text), category, filename, lineno)


def _not_run(test: ContainedTest, why: Outcome) -> Ran:
    return Ran([report_skip(test.item, why.message)], stopped=why)


def _reruns_of(test: ContainedTest) -> tuple[int, float]:
    """Return how often a failed test may run again and the seconds to wait before, as pytest-rerunfailures was told.

    Never for the reproduces side: a documented failure that goes away the second time would count as repaired.
    """
    plugin: Any = test.item.config.pluginmanager.get_plugin("rerunfailures")
    if plugin is None or test.reproduces:
        return 0, 0.0
    return int(plugin.get_reruns_count(test.item) or 0), float(plugin.get_reruns_delay(test.item))


def _may_run_again(item: pytest.Item, report: pytest.TestReport) -> bool:
    """Return whether a failure is to be tried again: not if --only-rerun or --rerun-except leaves it out."""
    if not report.failed or hasattr(report, "wasxfail"):
        return False
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else report.longreprtext
    marker = item.get_closest_marker("flaky")

    def matches(name: str) -> bool | None:
        """Whether one of the option's patterns matches, those of the marker ``flaky`` first; None without any."""
        given = (marker.kwargs.get(name) if marker else None) or item.config.getoption(name, None) or []
        patterns = [given] if isinstance(given, str) else given
        return any(re.search(pattern, message) for pattern in patterns) if patterns else None

    return matches("only_rerun") is not False and not matches("rerun_except")
