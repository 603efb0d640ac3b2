"""How long tests take, as pytest's cache keeps it: for the line on progress, and for the order under pytest-xdist.

Under ``-n`` tests that share a contained child share a worker. Which do is known to the workers, who collect; the
controller, who distributes, reads it from a file that they write. What takes longest begins first, or one worker would
be left with it at the end.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from pytest_rlregress.util.units import format_duration

#: Seconds between two lines: on a terminal, and in a log.
EVERY_SECONDS = 15.0, 60.0
_SHOWN = 3
_CACHED = "rlregress/seconds"
#: Seconds that a test takes on two cores in files and folders of shipped scenarios that start engines and clusters.
SHIPPED_SECONDS = {
    "test_verl_step.py": 43.0,
    "component_checks.py": 1.5,
    "training": 1.1,
    "rollout": 0.85,
    "cluster": 0.6,
    "weight_sync": 0.5,
    "dependencies": 0.4,
}


def recorded_seconds(config: pytest.Config) -> dict[str, float]:
    """Return how long each test took when it last ran here, by node id; pytest's cache keeps it."""
    cache = getattr(config, "cache", None)  # without pytest's own plugin for it there is none
    return dict(cache.get(_CACHED, {})) if cache is not None else {}


class RunProgress:
    """Says where the run is until it ends, and keeps how long its tests took.

    Args:
        config: The session's config.
        say: Writes a line on the terminal.
    """

    def __init__(self, config: pytest.Config, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self._expected: dict[str, float] = {}
        self._tests: Sequence[str] = ()
        self._begun = time.monotonic()
        self._running: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._ended = threading.Event()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Take the tests that each of xdist's workers has collected."""
        self._begin(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the tests of a run in one process."""
        if session.items:
            self._begin([item.nodeid for item in session.items])

    def _begin(self, tests: Sequence[str]) -> None:
        if not self._tests and not self._config.option.collectonly:
            self._tests, self._begun = tests, time.monotonic()
            self._expected = recorded_seconds(self._config)
            terminal = getattr(self._config.pluginmanager.get_plugin("terminalreporter"), "isatty", False)
            threading.Thread(target=self._talk, args=(EVERY_SECONDS[not terminal],), daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part of a test, if it isn't a component's check, to what the test took."""
        if report.nodeid in self._running:
            self._took[report.nodeid] = self._took.get(report.nodeid, 0.0) + report.duration

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test is over."""
        self._running.pop(nodeid, None)

    def pytest_sessionfinish(self) -> None:
        """Stop talking, and keep what the tests took."""
        self._ended.set()
        cache = getattr(self._config, "cache", None)
        if cache is not None and self._took:
            cache.set(_CACHED, {**self._expected, **{test: round(took, 2) for test, took in self._took.items()}})

    def _talk(self, every: float) -> None:
        while not self._ended.wait(every):
            self._say(self.describe(time.monotonic()))

    def describe(self, now: float) -> str:
        """Return the line that says how far the run is; tests that have not run here yet count as the mean of those."""
        elapsed, running = now - self._begun, dict(self._running)
        done = {test for test in tuple(self._took) if test not in running}
        said = f"{len(done):,} of {len(self._tests):,} tests in {format_duration(elapsed)}"
        known = [self._expected[test] for test in self._tests if test in self._expected]
        if len(known) > len(self._tests) / 2:
            mean = sum(known) / len(known)
            whole = sum(self._expected.get(test, mean) for test in self._tests)
            of_done = sum(self._expected.get(test, mean) for test in self._tests if test in done)
            if of_done > 0:
                said += f", about {format_duration(elapsed * (whole - of_done) / of_done)} left"
        longest = sorted(running.items(), key=lambda one: one[1])[:_SHOWN]
        shown = [f"{test.rpartition('scenarios/')[2]} ({format_duration(now - begun)})" for test, begun in longest]
        return said + (f"; running: {', '.join(shown)}" if shown else "")


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's own scheduling by scope; the scope is the group of a contained test, the folder of any other."""

    def __init__(self, config: pytest.Config, log: Any, file: Path) -> None:
        super().__init__(config, log)
        self._file = file
        self._groups: dict[str, str] | None = None
        self._seconds = recorded_seconds(config)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._expected_seconds), last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: Any) -> str | None:
        """Take the work of a worker that is gone back, without the test that it died of; returns that test."""
        work = self.assigned_work.get(node, {})
        died = next((test for tests in work.values() for test, done in tests.items() if not done), None)
        for tests in work.values():
            if died in tests:
                tests[died] = True
        # xdist takes the first test that isn't done for the one that died, and runs it again.
        left = {scope: tests for scope, tests in work.items() if not all(tests.values())}
        self.assigned_work[node] = left or work
        super().remove_node(node)
        return died

    def _expected_seconds(self, scope: str) -> float:
        """Return what the tests of a scope took the last time, or would take where the shipped weights come from."""
        return sum(self._seconds.get(test, _usual_seconds(test)) for test in self.workqueue[scope])

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:
            self._groups = json.loads(self._file.read_text())
        return self._groups.get(nodeid) or str(PurePath(nodeid.partition("::")[0]).parent)


def _usual_seconds(test: str) -> float:
    """Return what a test takes that has not run here yet."""
    parts = reversed(PurePath(test.partition("::")[0]).parts)
    return next((SHIPPED_SECONDS[part] for part in parts if part in SHIPPED_SECONDS), 0.2)
