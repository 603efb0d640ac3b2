"""pytest's side of containment: runs every contained test in a child and logs its reports as if it had run here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_rlregress.containment.client import ContainmentError, Death
from pytest_rlregress.containment.places import Place, place_of, warm_modules
from pytest_rlregress.containment.pool import Pool
from pytest_rlregress.containment.reports import died, outcome_of, restored, skipped
from pytest_rlregress.containment.worker import key_of
from pytest_rlregress.verdict import Outcome

_PLACE: pytest.StashKey[Place] = pytest.StashKey()
_KEY: pytest.StashKey[str] = pytest.StashKey()


class Containment:
    """Containment of one pytest session.

    Args:
        config: The session's config.
        timeout: Seconds a test may take that does not say otherwise.
        components: Names the components of the stack that a test needs.
        unavailable: Says why a test cannot run here, or None.
        conclude: Takes the outcome of a test and the report that is to carry its verdict.
    """

    def __init__(
        self,
        config: pytest.Config,
        *,
        timeout: float,
        components: Callable[[pytest.Item], tuple[str, ...]],
        unavailable: Callable[[pytest.Item], str | None],
        conclude: Callable[[pytest.Item, Outcome, pytest.TestReport], None],
    ) -> None:
        self._config, self._timeout = config, timeout
        self._components, self._unavailable, self._conclude = components, unavailable, conclude
        self._pool = Pool(config, self._say)
        self._warm: tuple[str, ...] = ()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note where each contained test runs."""
        for item in items:
            place = place_of(item)
            if place is not None:
                item.stash[_PLACE], item.stash[_KEY] = place, key_of(item)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start importing, in the warm server, while other tests run."""
        runnable = [item for item in _contained(session) if not item.stash[_PLACE].fresh]
        needed = {name for item in runnable if not self._unavailable(item) for name in self._components(item)}
        self._warm = warm_modules(needed)
        if self._warm and not self._config.option.collectonly:
            self._pool.warm(self._warm)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a contained test in its child; others go on as always."""
        if _PLACE not in item.stash:
            if nextitem is not None and _PLACE in nextitem.stash:
                # The next one sets up nothing in this process: only session fixtures may stay for those after it.
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=item.session)
                return True
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reason = self._unavailable(item)
        if reason is not None:
            self._log(item, [skipped(item, reason)], None)
        else:
            self._run(item)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run(self, item: pytest.Item) -> None:
        place = item.stash[_PLACE]
        following = self._following(item)
        reports: list[pytest.TestReport] = []
        errors: list[str] = []

        def hear(kind: str, value: Any) -> None:
            if kind == "report":
                report = self._config.hook.pytest_report_from_serializable(config=self._config, data=value)
                reports.append(restored(item, report))
            elif kind == "say":
                self._say(value)
            else:
                errors.append(value)

        marker = item.get_closest_marker("isolated")
        seconds = float((marker and marker.kwargs.get("timeout")) or self._timeout)
        if not place.alone:
            self._pool.stop_groups(but=place)
        mates = [other for other in _contained(item.session) if other.stash[_PLACE] == place]
        modules = self._warm if any(map(self._components, mates)) else ()
        try:
            child = self._pool.child(place, [mate.path for mate in mates], modules)
            death = child.run(item.stash[_KEY], following, seconds, hear)
            if death is not None:
                self._pool.drop(place)
            elif following is None:
                death = self._pool.stop(place, hear)
        except ContainmentError as error:
            death = Death("crashed", None, str(error), "")
        if death is not None or errors:
            reports.append(died(item, reports, errors, death))
        self._log(item, reports, death)

    def _following(self, item: pytest.Item) -> str | None:
        """The next test in the same child, None for none, "" when another process decides what that is."""
        if item.stash[_PLACE].alone:
            return None
        if hasattr(self._config, "workerinput"):
            return ""
        later = item.session.items[item.session.items.index(item) + 1 :]
        mates = (i for i in later if i.stash.get(_PLACE, None) == item.stash[_PLACE] and not self._unavailable(i))
        return next((mate.stash[_KEY] for mate in mates), None)

    def _log(self, item: pytest.Item, reports: list[pytest.TestReport], death: Death | None) -> None:
        """Hand the reports on; the one that decides the test carries its verdict, and so do those after it."""
        verdict: list[tuple[str, object]] = []
        for report in reports:
            report.user_properties.extend(verdict)  # junit reads those of the teardown
            if report.when == "call" or (report.when == "setup" and not report.passed):
                before = len(report.user_properties)
                self._conclude(item, outcome_of(report, death), report)
                verdict = report.user_properties[before:]
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Nothing survives the session."""
        self._pool.close(politely=session.exitstatus != pytest.ExitCode.INTERRUPTED)

    def _say(self, line: str) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self._config.option.verbose >= 0:
            reporter.ensure_newline()
            reporter.write_line(f"rlregress: {line}")


def _contained(session: pytest.Session) -> list[pytest.Item]:
    return [item for item in session.items if _PLACE in item.stash]
