"""Checks of the components: has each one that tests need tried once, before them; says which broken one blocks a test.

The tests in ``component_checks`` are the checks. One that starts a fixture runs in the child of a test that asks for
the fixture, and leaves it running there; the others share a child of their own. Under xdist each worker checks what its
tests need; the run shows the first result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import properties
from pytest_rlregress.containment.grouping import ChildGroup
from pytest_rlregress.containment.reports import decides, make_skipped, received
from pytest_rlregress.containment.running import GROUP, Ran, contained
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
        self._prepared: set[ChildGroup] = set()

    def stops(self, item: pytest.Item) -> Outcome | None:
        """Why a test is not run: a component that it needs is broken, or cannot be driven.

        All that its group needs is checked before the group's first test.
        """
        self._check_group(item)
        return self._why_not(item, [self._checked[name] for name in self._needed(item)])

    def explains(self, item: pytest.Item) -> Outcome | None:
        """Why a guard that failed says nothing: a component of its failure is broken, which the guard did not name."""
        names = [name for name in self._run.may_touch(item) if name in COMPONENTS and not missing([name])]
        return self._why_not(item, [self._check(name, item.session, {}) for name in names])

    def _why_not(self, item: pytest.Item, found: Sequence[Checked]) -> Outcome | None:
        for checked in found:
            if checked.outcome.kind == "skipped":
                return checked.outcome
            if checked.outcome.kind != "passed" and not self._run.documented(item, checked.outcome):
                return Outcome("blocked", message=f"{checked.component} is broken: {_evidence(checked.outcome)}")
        return None

    def _check_group(self, item: pytest.Item) -> None:
        group = item.stash[GROUP]
        if group in self._prepared:
            return
        mates = [item] if group.alone else [mate for mate in contained(item.session) if mate.stash[GROUP] == group]
        mates = [mate for mate in mates if not self._run.unavailable(mate)]
        asking = {fixture.starts: mate for mate in mates for fixture in asked_by(mate).values() if fixture.starts}
        needed = self._with_what_they_need([name for mate in mates for name in self._needed(mate)], item.session)
        for name in sorted(needed, key=lambda name: name in asking):  # last what stays in the group's child
            self._check(name, item.session, asking)
        if not group.alone:
            self._prepared.add(group)

    def _with_what_they_need(self, names: Sequence[str], session: pytest.Session) -> dict[str, None]:
        """Return components, each after those that its check needs."""
        found: dict[str, None] = {}
        for name in names:
            found |= {**self._with_what_they_need(self._needed_by_check(name, session), session), name: None}
        return found

    def _needed_by_check(self, name: str, session: pytest.Session) -> list[str]:
        check = self._collected(session).get(component_checks.check_of(name))
        needed = [one for marker in check.iter_markers("needs") for one in marker.args] if check else []
        return [one for one in needed if not missing([one])]

    def _needed(self, item: pytest.Item) -> list[str]:
        names = () if item.path == FILE else self._run.components(item)
        return [name for name in names if name in COMPONENTS or name in PARTS]

    def take_reports(self) -> list[Any]:
        """Return the reports of checks that were made since the last call, as plain values."""
        reports, self._reports = self._reports, []
        return reports

    def _check(self, name: str, session: pytest.Session, asking: Mapping[str, pytest.Item]) -> Checked:
        if name not in self._checked:
            self._checked[name] = self._made(name, session, asking)
        return self._checked[name]

    def _made(self, name: str, session: pytest.Session, asking: Mapping[str, pytest.Item]) -> Checked:
        """Run the check of a component, in the child of the test that asks for what the check starts, if one does."""
        check = self._collected(session).get(component_checks.check_of(name))
        if check is None:
            return Checked(name, Outcome("passed"))
        for other in self._needed_by_check(name, session):
            if (found := self._check(other, session, asking)).outcome.kind != "passed":
                return found
        ran = self._execute(check, asking.get(name))
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
