"""pytest's side of containment: runs every contained test in a child and logs its reports as if it had run here."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import properties
from pytest_rlregress.containment import checks, inline
from pytest_rlregress.containment.client import ContainmentError
from pytest_rlregress.containment.death import Death
from pytest_rlregress.containment.grouping import CONTAINED, group_of, limits_of, together, warm_modules
from pytest_rlregress.containment.pool import Pool
from pytest_rlregress.containment.reports import (
    decides,
    describe_death,
    drop_output,
    drop_start_up,
    fold_subtests,
    skipped,
    torn_down,
)
from pytest_rlregress.containment.reruns import reruns_of
from pytest_rlregress.containment.running import CHECKS, GROUP, TIMEOUT, Ran, Runner, contained
from pytest_rlregress.containment.scheduling import ByGroup, write_groups
from pytest_rlregress.containment.worker import key_of
from pytest_rlregress.fixtures.stack_fixtures import STACK_FIXTURES, asked_by
from pytest_rlregress.verdicts import Outcome

if TYPE_CHECKING:
    from pytest_rlregress.session import Session

_OURS = re.compile(rf"\bmark\.({'|'.join(CONTAINED)})\b|\b({'|'.join(STACK_FIXTURES)})\b".encode())


class Containment:
    """Containment of one pytest session.

    Args:
        config: The session's config.
        run: What the session knows.
        every_file: Whether every test file is imported in a child first, not only those with tests of ours.
    """

    def __init__(self, config: pytest.Config, run: Session, *, every_file: bool) -> None:
        self._config, self._run, self._every_file = config, run, every_file
        self._pool = Pool(config, run.gpus, self.say)
        self._runner = Runner(self._pool, run, self.say)
        self._checks = checks.ComponentChecks(config, run, self._check)
        self._stopped = False
        self._running = ""
        # SIGTERM ends the session as Ctrl-C does: fixtures are torn down and reports written.
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _stop)
            config.add_cleanup(_go_on_after_sigterm)

    # -- collection ------------------------------------------------------------------------------------------------

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """Import a file with tests of ours in a child first: what dies of it there is not imported here."""
        if not self._every_file and not _OURS.search(module_path.read_bytes()):
            return None
        try:
            death = self._pool.try_import(module_path, self._run.limits)
        except (ContainmentError, OSError) as error:
            death = Death("crashed", None, f"could not be contained: {error}", "")
        if death is None:
            return None
        module: _Died = _Died.from_parent(parent, path=module_path)
        module.death = death
        return module

    def order(self, items: list[pytest.Item]) -> None:
        """Note where each contained test runs, and put those of one child one after the other.

        What is expected to end the child comes last: the others would need a new one, with its engine or server.
        """
        in_order: list[pytest.Item] = []
        for item in items:
            group = group_of(item)
            if group is not None:
                limits_of(item, self._run.limits)
                item.stash[GROUP] = group
        ordered = together(items, [item.stash.get(GROUP, None) for item in items])
        for _, mates in groupby(ordered, key=lambda item: item.stash.get(GROUP, None)):
            in_order += sorted(mates, key=self._may_end_process)
        items[:] = in_order

    def _may_end_process(self, item: pytest.Item) -> bool:
        side = self._run.side(item)
        return side is not None and side.may_end_process

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start importing, in the warm server, while other tests run."""
        self._pool.imported()
        if inline.needed(self._config, len(contained(session))):
            self._config.pluginmanager.unregister(self)
            replacement = inline.Inline(self._config, self._run)
            self._config.pluginmanager.register(replacement, "rlregress-inline")
            replacement.pytest_collection_finish(session)  # registered while this very hook is being called
            self._pool.close(politely=True)
            return
        write_groups(self._config, {item.nodeid: item.stash[GROUP].name for item in contained(session)})
        runnable = [item for item in contained(session) if not item.stash[GROUP].fresh]
        needed = {name for item in runnable if not self._run.unavailable(item) for name in self._run.may_touch(item)}
        self._runner.warm = warm_modules(needed)
        if self._runner.warm and not self._config.option.collectonly:
            self._pool.warm(self._runner.warm)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell one of xdist's workers where to write down which tests share a child."""
        node.workerinput["rlregress_groups"] = str(self._pool.groups_file)

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        """Under ``-n``, unless ``--dist`` says otherwise: tests that share a child go to one worker.

        A conftest file may say otherwise too, but not of the shipped scenarios, which its tests are none of.
        """
        given = yield
        shipped = self._run.settings.hw and config.args_source != pytest.Config.ArgsSource.ARGS
        if config.getoption("dist") == "load" and (shipped or type(given).__module__.startswith("xdist.")):
            return ByGroup(config, log, self._pool.groups_file)
        return given

    # -- one test --------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a contained test in its child; others go on as always."""
        if GROUP not in item.stash:
            if nextitem is not None and GROUP in nextitem.stash:
                # The next one sets up nothing in this process: only session fixtures may stay for those after it.
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=item.session)
                return True
            return None
        self._running = item.nodeid
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reason = self._run.unavailable(item)
        stops = self._checks.stops(item) if reason is None else Outcome("skipped", message=reason)
        if stops is not None:
            self._log(item, Ran([skipped(item, stops.message)], stopped=stops))
        else:
            reruns, delay = reruns_of(item)
            while self._run_in_child(item, nextitem, reruns):
                reruns -= 1
                time.sleep(delay)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._running = ""
        return True

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """pytest-timeout's limit for a contained test is this plugin's to watch: its own would end the session."""
        if GROUP not in item.stash:
            return None
        item.stash[TIMEOUT] = float(settings.timeout)
        return True

    def _run_in_child(self, item: pytest.Item, nextitem: pytest.Item | None, reruns: int) -> bool:
        """Run a test in its child and log its reports; whether it failed and is to run once more in another one."""
        ran = self._runner.run(item, item.stash[GROUP], self._following(item, nextitem), reruns)
        if any(report.failed for report in ran.reports) and (stops := self._checks.explains(item)):
            ran = Ran([skipped(item, stops.message)], stopped=stops)
        if ran.again:
            self._log_rerun(item, ran.reports)
        else:
            self._log(item, ran)
        return ran.again

    def _check(self, check: pytest.Item, host: pytest.Item | None) -> Ran:
        """Run the check of a component in a test's child or, without one, in that of all checks.

        One that starts something there gets a child that ends with it.
        """
        if host is not None and not host.stash[GROUP].alone:
            return self._runner.run(check, host.stash[GROUP], "", 0)
        if any(fixture.starts for fixture in asked_by(check).values()):
            return self._runner.run(check, replace(CHECKS, alone=True), None, 0)
        return self._runner.run(check, CHECKS, "", 0)

    def _log_rerun(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        """Log a failure that is not the last word as pytest-rerunfailures does: what follows it is left out."""
        for report in fold_subtests(reports, judged=True):
            failed = report.failed
            if failed:
                report.outcome = "rerun"  # type: ignore[assignment]
            item.ihook.pytest_runtest_logreport(report=report)
            if failed:
                return

    def _following(self, item: pytest.Item, nextitem: pytest.Item | None) -> str | None:
        """The next test in the same child, None for none, "" where xdist has not said yet what comes next."""
        if item.stash[GROUP].alone:
            return None
        xdist = hasattr(self._config, "workerinput")  # a worker collects all tests, and runs those it is given
        later = [nextitem] if xdist else item.session.items[item.session.items.index(item) + 1 :]
        for mate in later:
            shares = mate is not None and mate.stash.get(GROUP, None) == item.stash[GROUP]
            if mate and shares and not self._run.unavailable(mate) and self._checks.stops(mate) is None:
                return key_of(mate)
        return "" if xdist else None

    def _log(self, item: pytest.Item, ran: Ran) -> None:
        """Hand the reports on; the one that decides the test carries the verdict, and so do those after."""
        sided = any(item.get_closest_marker(side) for side in ("reproduces", "guards"))
        reports = fold_subtests(ran.reports, judged=sided)
        if reports[-1].when != "teardown":  # junit reads the properties of that one, and there was none
            reports.append(torn_down(item, reports[-1]))
        verdict: list[tuple[str, object]] = []
        for report in reports:
            report.user_properties.extend(verdict)
            if decides(report):
                before = len(report.user_properties)
                self._run.conclude(item, ran.outcome(report), report)
                verdict = report.user_properties[before:]
        made = self._checks.take_reports()
        if made:
            properties.add(reports[0], checks=json.dumps(made))
        for report in reports:
            drop_start_up(report)
            if self._config.option.capture == "no":
                drop_output(report)
            item.ihook.pytest_runtest_logreport(report=report)

    # -- the end ---------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """All children have ended when other plugins look at the end of the loop, as coverage does."""
        result = yield
        self._pool.close(politely=True)
        return result

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C, SIGTERM or ``pytest.exit()``: children get seconds to tear down, not the time they want."""
        self._stopped = True
        if self._running:
            self.say(f"interrupted while {self._running} ran")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Nothing survives the session, even if a report cannot be written."""
        self._pool.close(politely=not self._stopped)

    def say(self, line: str) -> None:
        """Write a line of its own on the terminal, unless the run is to be quiet."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._config.option.verbose >= 0:
            reporter.ensure_newline()
            reporter.write_line(f"rlregress: {line}")


class _Died(pytest.Module):
    """A test file whose import ended the process that tried it."""

    death: Death

    def collect(self) -> list[pytest.Item]:
        text, _ = describe_death(self.death)
        raise self.CollectError(f"{self.path}: import of the test module: {text}")


def _go_on_after_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _stop:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stop(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one does not wait
    pytest.exit(f"stopped by {signal.Signals(number).name}", returncode=128 + number)
