"""Contained tests in pytest's own process, for debugging: ``--rl-inline``, which ``--pdb`` and ``--trace`` imply."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_rlregress.containment import CHANNEL
from pytest_rlregress.harness import OPENED
from pytest_rlregress.harness.collection import STACK_FIXTURES
from pytest_rlregress.harness.items import contained, find
from pytest_rlregress.harness.judging import conclude, outcome_of
from pytest_rlregress.harness.reports import decides
from pytest_rlregress.harness.session import Session

#: What tests lack that run in pytest's own process.
PROTECTION = (
    "contained tests run in this process: a crash or a hang ends the session; limits on time and memory, the check for "
    "leaks and the locks on GPUs are off; isolated(env=…) sets variables in an interpreter that is not new"
)

_DEBUGGERS = {"--pdb": "usepdb", "--trace": "trace"}
_SHOW_SET_UP = {"--setup-only": "setuponly", "--setup-show": "setupshow"}


def check_that_fixture_may_run(request: pytest.FixtureRequest) -> None:
    """Fail a test whose fixture would import the stack here, which only a child may, or this process if asked to."""
    session = request.config.stash.get(OPENED, None)
    if CHANNEL in request.config.stash or (session is not None and session.inline):
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


def is_asked_for(session: pytest.Session) -> bool:
    """Return whether an option needs the contained tests that are selected in pytest's own process.

    Raises:
        pytest.UsageError: An option that does not reach into children and isn't a debugger's.
    """
    config, tests = session.config, contained(session)
    given = [name for name, where in {**_DEBUGGERS, **_SHOW_SET_UP}.items() if config.getoption(where, False)]
    # In one of xdist's workers nobody would see what these show.
    if not given or not tests or config.option.collectonly or hasattr(config, "workerinput"):
        return False
    if given[0] in _DEBUGGERS:
        return True
    raise pytest.UsageError(
        f"{given[0]} does not reach into contained tests, of which {len(tests)} are selected: run them in pytest's own "
        "process with --rl-inline."
    )


def warn(session: pytest.Session) -> None:
    """Say that protection is off."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    planned = session.config.getoption("setupplan", False)  # a plan runs nothing
    if reporter is not None and not planned and contained(session):
        reporter.ensure_newline()
        reporter.write_line(f"rlregress: {PROTECTION}", yellow=True)


class InlineTests:
    """The hooks of contained tests that run in pytest's own process."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Set the variables of a test's marker, until it has ended."""
        test = find(item)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in test.group.environment if test else ():
                patch.setenv(name, value)
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test that cannot run here."""
        if (test := find(item)) and test.unavailable:
            pytest.skip(test.unavailable)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judge the report that decides a test, unless its body was not run or somebody stepped through it."""
        report = yield
        unjudged = item.config.getoption("setuponly", False) or item.config.getoption("trace", False)
        if (test := find(item)) and decides(report) and not unjudged:
            conclude(test, outcome_of(report, None), report, self._session)
        return report
