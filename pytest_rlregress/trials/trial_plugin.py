"""pytest's side of a trial: run the tests that were asked for, each contained, and write down what came out.

``pytest_run.run_tests`` loads this plugin with ``-p`` and gives it ``--rl-trial=REQUEST.json``. It writes JSON, an
object a line, on disk as soon as a test has ended: a run that is killed leaves what it has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress import catalogue, hardware
from pytest_rlregress.containment import CHANNEL
from pytest_rlregress.containment.interface import describe
from pytest_rlregress.harness import items as harness_items
from pytest_rlregress.harness import properties, session
from pytest_rlregress.harness.judging import CONCLUDED, outcome_of
from pytest_rlregress.harness.node_ids import stable_id
from pytest_rlregress.harness.stack_fixtures import CONTAINED
from pytest_rlregress.trials.failure_comparison import GOOD_VERDICTS
from pytest_rlregress.trials.observations import Observation
from pytest_rlregress.util.files import append_json
from pytest_rlregress.util.processes import end_with_parent
from pytest_rlregress.verdicts import Outcome

#: Characters kept of a text, from its end.
TEXT = 20_000
_VERDICTS = {"skipped": "unavailable"}  # of an outcome without a side; the others are their own
_LEAK = re.compile(r"(\w+ fixture '[^']*' )?leaked ")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that says what is asked for; without it this plugin does nothing."""
    parser.addoption("--rl-trial", dest="rl_trial", type=Path, help=argparse.SUPPRESS)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Write down a conftest file that cannot be imported: pytest ends before it looks at any test."""
    try:
        return (yield)
    except Exception as error:
        request, path = early_config.known_args_namespace.rl_trial, getattr(error, "path", None)
        if request is not None and path is not None and error.__cause__ is not None:
            test = Path(os.path.relpath(path, early_config.rootpath)).as_posix()
            observation = Observation(test, _make_outcome(error.__cause__), "uncollected", str(error))
            _append(Path(json.loads(request.read_text())["seen"]), {"observation": observation})
        raise


def pytest_configure(config: pytest.Config) -> None:
    """Contain every test, and watch; not in the contained children, where this plugin is loaded too."""
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
    config.pluginmanager.register(TrialPlugin(config, run, request, named), "rlregress-trial")


def _folder(run: session.Session, failure_id: str) -> str:
    """Where a failure's tests are in this environment."""
    try:
        return str(run.catalogue.find(failure_id, "the request").folder)
    except catalogue.CatalogueError as error:
        raise pytest.UsageError(str(error)) from None


class TrialPlugin:
    """Chooses the tests of one run, and writes down what came out of each."""

    def __init__(
        self, config: pytest.Config, run: session.Session, request: Mapping[str, Any], named: list[str]
    ) -> None:
        self._config, self._run, self._request = config, run, request
        self._named = [config.invocation_params.dir.joinpath(test.partition("::")[0]).resolve() for test in named]
        self._items: dict[str, pytest.Item] = {}
        self._plain: set[str] = set()
        self._seen: dict[str, Observation] = {}
        self._write({"hardware": _hardware(run)})

    # -- collection ------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
        """Write down a file that cannot be imported, or that skips all of its tests."""
        report: Any = yield
        if not report.passed:
            if report.failed:  # pytest wraps an ImportError into an exception of its own
                error = report.call.excinfo.value
                report.rlregress_exception = _describe(error.__cause__ or error)
            outcome = outcome_of(report, getattr(collector, "death", None))
            verdict = "uncollected" if report.failed else "unavailable"
            test = stable_id(collector.nodeid, collector.path)
            self._write({"observation": _truncate(Observation(test, outcome, verdict, report.longreprtext))})
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """Leave out what was not asked for, and mark the rest for containment: a file of plain tests shares a child."""
        requested = [item for item in items if self._is_requested(item)]
        needed = self._needed(requested)
        self._write({"needed": needed})
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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what decides a test, and write it down at its end."""
        if report.nodeid not in self._items:  # of a check that the harness makes for the test: the test says what of it
            return
        before = self._seen.get(report.nodeid)
        if report.when == "teardown":
            if (
                report.failed
                and before is not None
                and before.verdict in GOOD_VERDICTS
                and not self._plain_leak(report)
            ):
                outcome = outcome_of(report, None)
                before = replace(before, outcome=outcome, verdict="failed", text=report.longreprtext)
            if before is not None:
                self._write({"observation": _truncate(before)})
        elif report.when == "call" or not report.passed:
            self._seen[report.nodeid] = self._observe(self._items[report.nodeid], report)

    def _observe(self, item: pytest.Item, report: pytest.TestReport) -> Observation:
        outcome, named = item.stash[CONCLUDED]
        found = properties.read(report)
        came_out = (text for title, text in report.sections if title.endswith(": what came out"))
        return Observation(
            stable_id(item.nodeid, item.path),
            outcome,
            found.get("verdict") or _VERDICTS.get(outcome.kind, outcome.kind),
            report.longreprtext if report.failed else next(came_out, ""),
            found.get("failure"),
            found.get("side"),
            named,
            json.loads(found.get("measured", "null")),
        )

    def _plain_leak(self, report: pytest.TestReport) -> bool:
        """Whether a test failed only for what it left behind, which pytest itself would not mind."""
        return report.nodeid in self._plain and _LEAK.match(outcome_of(report, None).message) is not None

    # -- the end ---------------------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """The run came to its end."""
        self._write({"ended": True})

    def _write(self, record: Mapping[str, object]) -> None:
        _append(Path(self._request["seen"]), record)


def _hardware(run: session.Session) -> str:
    """Name the profile and the devices of the run."""
    devices = "; ".join(map(hardware.describe_gpu, run.machine.gpus))
    try:
        profile = run.profile
    except pytest.UsageError:  # a card that no profile is for
        return devices
    return profile.id if profile.is_cpu else f"{profile.id} of {devices}"


def _make_outcome(error: BaseException) -> Outcome:
    seen = _describe(error)
    return Outcome("failed", "collect", tuple(seen["exceptions"]), seen["message"], tuple(seen["frames"]))


def _describe(error: BaseException) -> dict[str, Any]:
    return describe(pytest.ExceptionInfo.from_exception(error))


def _truncate(observation: Observation) -> Observation:
    outcome = replace(observation.outcome, log=observation.outcome.log[-TEXT:])
    return replace(observation, outcome=outcome, text=observation.text[-TEXT:])


def _append(path: Path, record: Mapping[str, object]) -> None:
    with path.open("ab") as file:
        append_json(file.fileno(), [record], sync=True)
