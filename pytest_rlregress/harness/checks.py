"""Checks of the components: has each one that tests need tried once, before them; says which broken one blocks a test,
and what the warm server imports for them.

The tests in ``component_checks`` are the checks. One that starts a fixture runs in the child of a test that asks for
the fixture, and leaves it running there; the others share a child of their own. Under xdist each worker checks what its
tests need; the run shows the first result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from pytest_rlregress.containment import ChildGroup
from pytest_rlregress.failures.causes import find_cause, is_import
from pytest_rlregress.failures.verdicts import Outcome, first_line
from pytest_rlregress.harness import component_checks
from pytest_rlregress.harness.component_checks import FILE
from pytest_rlregress.harness.items import ContainedTest, contained, describe_all
from pytest_rlregress.harness.judging import Ran, excuse, is_documented
from pytest_rlregress.harness.reports import (
    add_properties,
    decides,
    load_report,
    make_skipped,
    read_properties,
    take_property,
)
from pytest_rlregress.harness.session import Session
from pytest_rlregress.stack import COMPONENTS, PARTS, missing

#: What importing a component costs most of: these modules are in the warm server when a test needs the component.
WARM_MODULES: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "transformers": ("transformers", "transformers.models.qwen2.modeling_qwen2"),
    "tokenizers": ("tokenizers",),
    "tensordict": ("tensordict",),
    "verl": ("verl.protocol",),
    "ray": ("ray",),
    "vllm": (
        "vllm",
        "vllm.entrypoints.llm",
        # An engine imports these only as it starts.
        "vllm.v1.worker.cpu_model_runner",
        "vllm.v1.worker.gpu_worker",
        "vllm.model_executor.layers.quantization.online.base",
        "vllm.model_executor.models.qwen2",
    ),
    "trl": ("trl",),
}


@dataclass(frozen=True)
class Checked:
    """A component that was checked, or the broken one that it needs."""

    component: str
    outcome: Outcome


class ComponentChecks:
    """The checks of one pytest process.

    Args:
        pytest_session: Whose tests need the components.
        session: What the run knows.
        execute: Runs a check, in the child of a test if one is given.
    """

    def __init__(
        self,
        pytest_session: pytest.Session,
        session: Session,
        execute: Callable[[ContainedTest, ContainedTest | None], Ran],
    ) -> None:
        self._pytest_session, self._session, self._execute = pytest_session, session, execute
        self._checked: dict[str, Checked] = {}
        self._reports: list[Any] = []
        self._prepared: set[ChildGroup] = set()

    def stops(self, test: ContainedTest) -> Outcome | None:
        """Why a test is not run: a component that it needs is broken, or cannot be driven.

        All that its group needs is checked before the group's first test.
        """
        self._check_group(test)
        return self._why_not(test, [self._checked[name] for name in _needed(test)])

    def explains(self, test: ContainedTest, outcome: Outcome) -> Outcome | None:
        """Why a test that failed says nothing: a component of its failure is broken, which the test did not name.

        A part of a component, such as a trainer, is that where the test met the import that its check fails by.
        """
        names = [name for name in test.may_touch if name in COMPONENTS and not missing([name])]
        if stops := self._why_not(test, [self._check(name, {}) for name in names]):
            return stops
        cause = find_cause(outcome)
        if not is_import(cause) or is_documented(test, outcome):
            return None
        parts = [part for part, whole in PARTS.items() if whole in names and not missing([part])]
        checked = [self._check(part, {}) for part in parts]
        # A failure's own signature may be what the check fails by: the test met it before its act all the same.
        return next((_blocked(part) for part in checked if find_cause(part.outcome) == cause), None)

    def take_reports(self) -> list[Any]:
        """Return the reports of checks that were made since the last call, as plain values."""
        reports, self._reports = self._reports, []
        return reports

    def _why_not(self, test: ContainedTest, found: Sequence[Checked]) -> Outcome | None:
        for checked in found:
            if checked.outcome.kind == "skipped":
                return checked.outcome
            if checked.outcome.kind != "passed" and not is_documented(test, checked.outcome):
                return _blocked(checked)
        return None

    def _check_group(self, test: ContainedTest) -> None:
        if test.group in self._prepared:
            return
        mates = [test]
        if not test.group.alone:
            self._prepared.add(test.group)
            mates = [one for one in contained(self._pytest_session) if one.group == test.group and not one.unavailable]
        asking = {fixture.starts: mate for mate in mates for fixture in mate.fixtures if fixture.starts}
        needed = self._with_what_they_need([name for mate in mates for name in _needed(mate)])
        for name in sorted(needed, key=lambda name: name in asking):  # last what stays in the group's child
            self._check(name, asking)

    def _with_what_they_need(self, names: Sequence[str]) -> dict[str, None]:
        """Return components, each after those that its check needs."""
        found: dict[str, None] = {}
        for name in names:
            found |= {**self._with_what_they_need(self._needed_by_check(name)), name: None}
        return found

    def _needed_by_check(self, name: str) -> list[str]:
        check = self._collected.get(component_checks.check_of(name))
        needed = [one for marker in check.item.iter_markers("needs") for one in marker.args] if check else []
        return [one for one in needed if not missing([one])]

    def _check(self, name: str, asking: Mapping[str, ContainedTest]) -> Checked:
        if name not in self._checked:
            self._checked[name] = self._made(name, asking)
        return self._checked[name]

    def _made(self, name: str, asking: Mapping[str, ContainedTest]) -> Checked:
        """Run the check of a component, in the child of the test that asks for what the check starts, if one does."""
        check = self._collected.get(component_checks.check_of(name))
        if check is None:
            return Checked(name, Outcome("passed"))
        for other in self._needed_by_check(name):
            if (found := self._check(other, asking)).outcome.kind != "passed":
                return found
        ran = self._execute(check, asking.get(name))
        outcome = next((ran.outcome(report) for report in ran.reports if decides(report)), Outcome("passed"))
        if outcome.lacks:
            outcome = Outcome("skipped", message=outcome.lacks)
        config = self._pytest_session.config
        for report in ran.reports:
            add_properties(report, component=name, note="" if report.passed else _evidence(outcome))
            if report.failed and outcome.kind == "skipped":
                make_skipped(report, check.item, outcome.message)
            excuse(report, "broken", self._session, check.item.name, component=name)
            self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))
        return Checked(name, outcome)

    @cached_property
    def _collected(self) -> dict[str, ContainedTest]:
        nodeid = f"pytest_rlregress/harness/{FILE.name}"
        module: Any = pytest.Module.from_parent(self._pytest_session, path=FILE, nodeid=nodeid)
        return {test.item.name: test for test in describe_all(module.collect(), self._session)}


def warm_modules(components: set[str]) -> tuple[str, ...]:
    """Return the modules that a warm server imports for tests that need these components."""
    return tuple(module for name, modules in WARM_MODULES.items() if name in components for module in modules)


def is_check(test: ContainedTest) -> bool:
    """Return whether a test is a check of a component."""
    return test.item.path == FILE


def _needed(test: ContainedTest) -> list[str]:
    names = () if is_check(test) else test.components
    return [name for name in names if name in COMPONENTS or name in PARTS]


def _blocked(checked: Checked) -> Outcome:
    return Outcome("blocked", message=f"{checked.component} is broken: {_evidence(checked.outcome)}")


def _evidence(outcome: Outcome) -> str:
    """Say in a line why a check did not pass."""
    return first_line(outcome) if outcome.kind == "failed" else outcome.message


def log_reports(config: pytest.Config, report: pytest.TestReport, known: Collection[str]) -> None:
    """Log the check reports that are attached to a test's report.

    Args:
        known: Components whose checks were logged: by now, by another of xdist's workers.
    """
    found, known = take_property(report, "checks"), {*known}
    for data in json.loads(found) if found else ():
        made = load_report(config, data)
        if read_properties(made)["component"] not in known:
            config.hook.pytest_runtest_logreport(report=made)
