"""Checks of the components: has each one that a test needs tried once, before it; says which broken one blocks a test.

The tests in ``component_checks`` are the checks. One that starts a fixture runs in the child of the test that asks for
the fixture, and leaves it running there; the others share a child of their own. Under xdist each worker checks what its
tests need; the run shows the first result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import properties
from pytest_rlregress.containment.reports import decides, make_skipped, received
from pytest_rlregress.containment.running import Ran
from pytest_rlregress.fixtures.stack_fixtures import asked_by
from pytest_rlregress.scenarios import component_checks
from pytest_rlregress.scenarios.component_checks import FILE
from pytest_rlregress.stack import COMPONENTS, PARTS, missing
from pytest_rlregress.verdicts import Outcome, first_line

if TYPE_CHECKING:
    from pytest_rlregress.session import Session


@dataclass(frozen=True)
class Checked:
    """A component that was checked, or the broken one that it needs."""

    component: str
    outcome: Outcome


class ComponentChecks:
    """The checks of one pytest process.

    Args:
        config: The session's config.
        run: What the session knows.
        execute: Runs a check, in the child of a test if one is given.
    """

    def __init__(
        self, config: pytest.Config, run: Session, execute: Callable[[pytest.Item, pytest.Item | None], Ran]
    ) -> None:
        self._config, self._run, self._execute = config, run, execute
        self._checked: dict[str, Checked] = {}
        self._items: dict[str, pytest.Item] = {}
        self._reports: list[Any] = []

    def stops(self, item: pytest.Item) -> Outcome | None:
        """Why a test is not run, after checking what it needs: a broken component, or one that cannot be driven."""
        for name in self._needed(item):
            checked = self._check(name, item)
            if checked.outcome.kind == "skipped":
                return checked.outcome
            if checked.outcome.kind != "passed" and not self._run.documented(item, checked.outcome):
                return Outcome("blocked", message=f"{checked.component} is broken: {_evidence(checked.outcome)}")
        return None

    def made_for(self, item: pytest.Item) -> bool:
        """Whether all that a test needs has been checked."""
        return self._checked.keys() >= {*self._needed(item)}

    def _needed(self, item: pytest.Item) -> list[str]:
        names = () if item.path == FILE else self._run.components(item)
        return [name for name in names if name in COMPONENTS or name in PARTS]

    def take_reports(self) -> list[Any]:
        """Return the reports of checks that were made since the last call, as plain values."""
        reports, self._reports = self._reports, []
        return reports

    def _check(self, name: str, item: pytest.Item) -> Checked:
        if name not in self._checked:
            self._checked[name] = self._made(name, item)
        return self._checked[name]

    def _made(self, name: str, item: pytest.Item) -> Checked:
        check = self._collected(item.session).get(component_checks.check_of(name))
        if check is None:
            return Checked(name, Outcome("passed"))
        needed = [one for marker in check.iter_markers("needs") for one in marker.args]
        for other in needed:
            if not missing([other]) and (found := self._check(other, item)).outcome.kind != "passed":
                return found
        asks = any(fixture.starts == name for fixture in asked_by(item).values())
        ran = self._execute(check, item if asks else None)
        outcome = next((ran.outcome(report) for report in ran.reports if decides(report)), Outcome("passed"))
        if outcome.lacks:
            outcome = Outcome("skipped", message=outcome.lacks)
        for report in ran.reports:
            properties.add(report, component=name, note="" if report.passed else _evidence(outcome))
            if report.failed and outcome.kind == "skipped":
                make_skipped(report, check, outcome.message)
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            self._reports.append(data)
        return Checked(name, outcome)

    def _collected(self, session: pytest.Session) -> dict[str, pytest.Item]:
        if not self._items:
            nodeid = f"pytest_rlregress/scenarios/{FILE.name}"
            module: Any = pytest.Module.from_parent(session, path=FILE, nodeid=nodeid)
            self._items = {item.name: item for item in module.collect()}
        return self._items


def _evidence(outcome: Outcome) -> str:
    """Say in a line why a check did not pass."""
    return first_line(outcome) if outcome.kind == "failed" else outcome.message


def log_reports(config: pytest.Config, report: pytest.TestReport, known: Collection[str]) -> None:
    """Log the reports of the checks that were made for a test, which one of its own reports brings along.

    Args:
        known: Components whose checks were logged: by now, by another of xdist's workers.
    """
    found, known = properties.take(report, "checks"), {*known}
    for data in json.loads(found) if found else ():
        made = received(config, data)
        if properties.read(made)["component"] not in known:
            config.hook.pytest_runtest_logreport(report=made)
