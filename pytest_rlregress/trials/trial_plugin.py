"""pytest's side of a trial: run the tests that were asked for, each contained, and record what came out.

``pytest_run.run_tests`` loads this plugin with ``-p`` and gives it ``--rl-trial=REQUEST.json``. The run's record
goes beside that file, as ``--rl-record-dir`` writes it, with the outcome of every test.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_rlregress.containment import CHANNEL
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.verdicts import Outcome, Rank, rank
from pytest_rlregress.harness import items as harness_items
from pytest_rlregress.harness import session
from pytest_rlregress.harness.collection import CONTAINED, stable_id
from pytest_rlregress.harness.interface import describe
from pytest_rlregress.harness.judging import CONCLUDED, outcome_of
from pytest_rlregress.harness.record_writer import RecordWriter
from pytest_rlregress.harness.reports import add_properties, read_properties
from pytest_rlregress.records import answer, record_types
from pytest_rlregress.stack import locks
from pytest_rlregress.util.files import write_whole
from pytest_rlregress.util.processes import end_with_parent

#: Beside the request: the folder of the record, and what the tests say they need, which a run of none has no record of.
RECORDS, NEEDED = "records", "needed.json"
#: Characters kept of a log, from its end.
LOG = 20_000
_LEAK = re.compile(r"(\w+ fixture '[^']*' )?leaked ")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that says what is asked for; without it this plugin does nothing."""
    parser.addoption("--rl-trial", dest="rl_trial", type=Path, help=argparse.SUPPRESS)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Record a conftest file that cannot be imported: pytest ends before it looks at any test."""
    try:
        return (yield)
    except Exception as error:
        request, path = early_config.known_args_namespace.rl_trial, getattr(error, "path", None)
        if request is not None and path is not None and error.__cause__ is not None:
            test = Path(os.path.relpath(path, early_config.rootpath)).as_posix()
            _record_conftest(request.with_name(RECORDS), test, error)
        raise


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let the log file of the user's ini file be: the last run of his own wrote it."""
    if config.option.rl_trial is not None and hasattr(config.option, "log_file"):
        config.option.log_file = os.devnull


def pytest_configure(config: pytest.Config) -> None:
    """Contain every test, and record the run; not in the contained children, where this plugin is loaded too."""
    if config.option.rl_trial is None or CHANNEL in config.stash:
        return
    request = json.loads(config.option.rl_trial.read_text())
    end_with_parent(signal.SIGTERM, request["parent"])  # a command that is killed takes its run with it
    run = session.find(config)
    run.open(every_file=True)
    given = config.args_source == pytest.Config.ArgsSource.ARGS
    named = [*(config.args if given else ()), *(str(catalogue.SHIPPED / test) for test in request["shipped"])]
    folders = [_folder(run, failure) for failure in request["failures"]]
    if named or folders:
        config.args[:] = [*named, *folders]
    writer = RecordWriter(config, run, config.option.rl_trial.with_name(RECORDS))
    config.pluginmanager.register(writer, "rlregress-record")
    # After it, so that its hooks are called before.
    config.pluginmanager.register(TrialPlugin(config, run, request, named), "rlregress-trial")


def _folder(run: session.Session, failure_id: str) -> str:
    """Find a failure's tests in this environment."""
    try:
        return str(run.catalogue.find(failure_id, "the request").folder)
    except catalogue.CatalogueError as error:
        raise pytest.UsageError(str(error)) from None


class TrialPlugin:
    """Chooses the tests of one run, and adds to their reports what came out of each."""

    def __init__(
        self, config: pytest.Config, run: session.Session, request: Mapping[str, Any], named: list[str]
    ) -> None:
        self._config, self._run, self._request = config, run, request
        self._named = [config.invocation_params.dir.joinpath(test.partition("::")[0]).resolve() for test in named]
        self._items: dict[str, pytest.Item] = {}
        self._plain: set[str] = set()
        self._good: set[str] = set()

    # -- collection ------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
        """Add the outcome of a file that cannot be imported, or that skips all of its tests."""
        report: Any = yield
        if not report.passed:
            if report.failed:  # pytest wraps an ImportError into an exception of its own
                error = report.call.excinfo.value
                report.rlregress_exception = _describe(error.__cause__ or error)
            report.user_properties = []
            _add(report, outcome_of(report, getattr(collector, "death", None)))
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Leave out what was not asked for, and mark the rest for containment: a file of plain tests shares a child."""
        requested = [item for item in items if self._is_requested(item)]
        needed = self._needed(requested)
        write_whole(self._config.option.rl_trial.with_name(NEEDED), json.dumps(needed))
        if self._request["finds_needs"] and needed is not None:
            requested = []
        kept = set(requested)
        left_out = [item for item in items if item not in kept]
        if left_out:
            items[:] = requested
            self._config.hook.pytest_deselected(items=left_out)
        for item in items:
            self._items[item.nodeid] = item
            if not any(map(item.get_closest_marker, CONTAINED)):
                item.add_marker(pytest.mark.isolated(group=str(item.path)))
                self._plain.add(item.nodeid)
        yield

    def _needed(self, items: list[pytest.Item]) -> list[str] | None:
        """Components that the tests say they need; None where one of them says nothing, or none can be seen here."""
        if not items or not all(any(map(item.get_closest_marker, ("reproduces", "guards", "needs"))) for item in items):
            return None
        tests = [harness_items.describe(item, self._run) for item in items]
        return sorted({name for test in tests if test for name in test.may_touch})

    def _is_requested(self, item: pytest.Item) -> bool:
        failures, tests = self._request["failures"], self._request["tests"]
        sides = filter(None, map(item.get_closest_marker, ("reproduces", "guards")))
        asked_for = (
            not failures
            or any(item.path.resolve().is_relative_to(path) for path in self._named)
            or any(side.args and side.args[0] in failures for side in sides)
        )
        return asked_for and (tests is None or stable_id(item.nodeid, item.path) in tests)

    # -- one test --------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the outcome to the report that decides a test; one that ends well may yet fail in its teardown."""
        item = self._items.get(report.nodeid)
        word: str = report.outcome
        if word == "rerun":  # a marker or an ini value asks for it: another report of the test follows
            return
        if item is None:  # of a check that the harness makes for the test: the test says what of it
            return
        if report.when == "teardown":
            if report.failed and report.nodeid in self._good:
                outcome = outcome_of(report, None)
                # What a plain test leaves behind pytest itself would not mind.
                if not (report.nodeid in self._plain and _LEAK.match(outcome.message)):
                    _add(report, outcome)
        elif report.when == "call" or not report.passed:
            outcome, named = item.stash[CONCLUDED]
            if rank(read_properties(report).get("verdict", outcome.kind)) is Rank.GOOD:
                self._good.add(report.nodeid)
            _add(report, outcome, ",".join(named))


def _add(report: Any, outcome: Outcome, named: str = "") -> None:
    """Add what came out of a test to its report, for the record."""
    kept = replace(outcome, log=outcome.log[-LOG:])
    add_properties(report, outcome=json.dumps(asdict(kept)), named=named)


def _record_conftest(folder: Path, test: str, error: BaseException) -> None:
    """Write the record of a run that ended before pytest had a session, as a conftest file cannot be imported."""
    now, here = round(time.time() * 1000), record_types.InstalledStack(locks.installed().text.splitlines())
    seen = _describe(error.__cause__ or error)
    outcome = Outcome("failed", "collect", tuple(seen["exceptions"]), seen["message"], tuple(seen["frames"]))
    extra = record_types.HarnessProperties(outcome=outcome)
    recorded = record_types.RecordedTest(test, "failed", "error", 0, test, extra, trace=str(error))
    head = record_types.begun(now, record_types.RunExtra(record_types.FORMAT, here))
    record = answer.with_tests(head, [recorded], "complete", now)
    write_whole(folder / "conftest.json", json.dumps(msgspec.to_builtins(record)))


def _describe(error: BaseException) -> dict[str, Any]:
    return describe(pytest.ExceptionInfo.from_exception(error))
