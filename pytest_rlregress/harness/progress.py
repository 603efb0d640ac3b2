"""Where a run is: now and then a line with the tests that are running and, from the last run here, the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from pytest_rlregress.util.units import format_duration

#: Seconds between two lines: on a terminal, and in a log.
EVERY_SECONDS = 15.0, 60.0
_SHOWN = 3
_CACHED = "rlregress/seconds"


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
