"""Contained tests in pytest's own process, for debugging: ``--rl-inline``, which ``--pdb`` and ``--trace`` imply."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress.containment.acts import Acts
from pytest_rlregress.containment.grouping import group_of
from pytest_rlregress.containment.reports import decides, outcome_of
from pytest_rlregress.containment.worker import CHANNEL, describe_of
from pytest_rlregress.fixtures.stack_fixtures import STACK_FIXTURES

if TYPE_CHECKING:
    from pytest_rlregress.session import Session

#: What tests lack that run in pytest's own process.
PROTECTION = (
    "contained tests run in this process: a crash or a hang ends the session; limits on time and memory, the check for "
    "leaks and the locks on GPUs are off; isolated(env=…) sets variables in an interpreter that is not new"
)

_DEBUGGERS = {"--pdb": "usepdb", "--trace": "trace"}
_SHOW_SET_UP = {"--setup-only": "setuponly", "--setup-show": "setupshow"}


def needed(config: pytest.Config, contained: int) -> bool:
    """Whether an option needs the contained tests that are selected in pytest's own process.

    Args:
        contained: How many contained tests are selected.

    Raises:
        pytest.UsageError: An option that does not reach into children and is no debugger's.
    """
    given = [name for name, where in {**_DEBUGGERS, **_SHOW_SET_UP}.items() if config.getoption(where, False)]
    # In one of xdist's workers nobody would see what these show.
    if not given or not contained or config.option.collectonly or hasattr(config, "workerinput"):
        return False
    if given[0] in _DEBUGGERS:
        return True
    raise pytest.UsageError(
        f"{given[0]} does not reach into contained tests, of which {contained} are selected: run them in pytest's own "
        "process with --rl-inline."
    )


def check_that_fixture_may_run(request: pytest.FixtureRequest) -> None:
    """Fail a test whose fixture would import the stack here, which only a child may, or this process if asked to."""
    config = request.config
    if CHANNEL in config.stash or config.pluginmanager.has_plugin("rlregress-inline"):
        return
    name, asking = request.fixturename, getattr(request, "_parent_request", None)
    while asking is not None and asking.fixturename in STACK_FIXTURES:  # not what the one that was asked for needs
        name, asking = asking.fixturename, getattr(asking, "_parent_request", None)
    needs = ", ".join(f'"{component}"' for component in STACK_FIXTURES[str(name)].components)
    pytest.fail(
        f"the fixture {name!r} uses the stack, which is not imported into pytest's own process. What "
        "request.getfixturevalue() asks for does not show before the test runs: name the fixture in the test's "
        f'signature or in @pytest.mark.usefixtures("{name}"), or mark the test @pytest.mark.needs({needs}).',
        pytrace=False,
    )


class Inline:
    """Gives contained tests their verdicts and the variables of their marker; pytest itself runs them."""

    def __init__(self, config: pytest.Config, run: Session) -> None:
        self._config, self._run = config, run
        config.pluginmanager.register(Acts(run), "rlregress-acts")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Say what protection is off."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        planned = self._config.getoption("setupplan", False)  # a plan runs nothing
        if reporter is not None and not planned and any(map(group_of, session.items)):
            reporter.ensure_newline()
            reporter.write_line(f"rlregress: {PROTECTION}", yellow=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test under the variables of its marker."""
        group = group_of(item)
        if group is None or not group.environment:
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in group.environment:
                patch.setenv(name, value)
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test that cannot run here."""
        reason = self._run.unavailable(item) if group_of(item) else None
        if reason is not None:
            pytest.skip(reason)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge the report that decides a test, unless its body was not run or somebody stepped through it."""
        report = yield
        unjudged = self._config.getoption("setuponly", False) or self._config.getoption("trace", False)
        if group_of(item) and decides(report) and not unjudged:
            if call.excinfo is not None:
                report.rlregress_exception = describe_of(item, call.excinfo)  # type: ignore[attr-defined]
            self._run.conclude(item, outcome_of(report, None), report)
        return report
