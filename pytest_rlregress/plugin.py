"""The pytest plugin: declares options, markers and fixtures; all else is imported when it is needed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import collection, properties, settings
from pytest_rlregress.fixtures.declare import *  # noqa: F403
from pytest_rlregress.fixtures.stack_fixtures import STACK_FIXTURES, asked_by, is_ours

if TYPE_CHECKING:
    from pytest_rlregress.session import Session

pytest.register_assert_rewrite("pytest_rlregress.scenarios")

MARKERS = (
    "reproduces(id, fidelity=None, expected=None): the test does the failing act of the documented failure; the plugin "
    "judges what comes out. fidelity: 'real', 'stand-in' or 'injected', and expected: 'reproduced' or 'absent', where "
    "the test differs from its failure's entry.",
    "guards(id, fidelity=None): the same act with the remedy; must pass.",
    "needs(*components): components of the stack a test needs (torch, vllm, ray, …) or parts of them (vllm-engine); "
    "missing ones make it unavailable, broken ones block it.",
    "hw(*profiles, capability=None, memory=None, count=None): a hardware test, run only where the profile of the run "
    'fits: hw(capability=">=9.0", memory=">=70GiB", count=2), or hw("h20") where no other model will do.',
    "isolated(group=None, timeout=None, memory=None, stall=None, env=None, fresh=False): run in a process of its own, "
    "or with those of its group; timeout in seconds, memory like '4GiB', stall: seconds to go on after its engine "
    "logged an error; env or fresh=True: from an interpreter that has imported nothing.",
)
LONG = "long: a contained test of a minute and more, run with --rl-long only."


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and ini values: see ``pytest_rlregress.settings.OPTIONS``."""
    settings.declare(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; where an option asks for it, look at the machine before anything is collected."""
    for marker in (*MARKERS, LONG):
        config.addinivalue_line("markers", marker)
    # Registered now, and not with the module: around what other plugins register when they are configured (--ff).
    config.pluginmanager.register(Collected(), "rlregress-collected")
    resolved = settings.resolve(config)
    if resolved.hw or resolved.require or resolved.record_dir or resolved.update_goldens:
        _open(config)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Print the profiles and end, for ``--hw=list``."""
    return _session(config).list_profiles() if settings.resolve(config).hw == "list" else None


class Collected:
    """Takes over what was collected, before and after other plugins choose and order it."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Hand collected tests with a marker of ours, or that ask for a fixture of the stack, to the harness."""
        with _usage_errors_shown(session, items):
            if ours := any(map(_is_for_the_harness, items)):
                _open(config)
                left_out = _session(config).adopt(items)
                collection.check(config, _session(config), [*items, *left_out])
                if left_out:
                    config.hook.pytest_deselected(items=left_out)
        containment: Any = config.pluginmanager.get_plugin("rlregress-containment")
        with _usage_errors_shown(session, items):
            if containment is not None:  # --stepwise goes on from a place in this order
                containment.order(items)
        with _usage_errors_shown(session, items):
            yield
            if ours and (left_out := _session(config).leave_out_long(items)):
                config.hook.pytest_deselected(items=left_out)
            if containment is not None:
                containment.order(items)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Watch for test files whose import brings the stack into this process."""
    return (yield from collection.watch(collector))


@contextmanager
def _usage_errors_shown(session: pytest.Session, items: list[pytest.Item]) -> Iterator[None]:
    """Make a usage error in one of xdist's workers an error of collection: xdist loses what ends a worker."""
    try:
        yield
    except pytest.UsageError as error:
        if not hasattr(session.config, "workerinput"):
            raise
        nodeid = items[0].nodeid.partition("::")[0]
        items.clear()
        report = pytest.CollectReport(nodeid, "failed", str(error), [])
        session.config.hook.pytest_collectreport(report=report)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Open for the first verdict that one of xdist's workers sends: without --hw only they know the tests."""
    config: pytest.Config | None = getattr(getattr(report, "node", None), "config", None)
    if config is not None and {"verdict", "checks"} & properties.read(report).keys() and _open(config):
        terminal: Any = config.pluginmanager.get_plugin("rlregress-terminal")
        terminal.pytest_runtest_logreport(report)  # registered while this very hook is being called


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Show the warnings of shipped scenarios, where the run's filters make errors of them: they are no verdict."""
    if all(action != "error" for action, *_ in warnings.filters) or not collection.is_shipped(item.path):
        return (yield)
    shown = [("default" if action == "error" else action, *rest) for action, *rest in warnings.filters]
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filters[:] = shown  # type: ignore[index]
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Keep the stack out of pytest's own process: a fixture that only shows when the test runs is refused there."""
    if fixturedef.argname in STACK_FIXTURES and is_ours(fixturedef):
        from pytest_rlregress.containment.inline import check_that_fixture_may_run

        check_that_fixture_may_run(request)


def _is_for_the_harness(item: pytest.Item) -> bool:
    return bool(asked_by(item)) or any(item.get_closest_marker(line.partition("(")[0]) for line in MARKERS)


def _open(config: pytest.Config) -> bool:
    """Open the session, and with it the report; False if it was open."""
    run = _session(config)
    if not run.open():
        return False
    from pytest_rlregress.terminal import Terminal

    terminal = Terminal(config, run)
    config.pluginmanager.register(terminal, "rlregress-terminal")
    if hasattr(config, "workerinput"):  # the rest is once a run, not in each of xdist's workers
        return True
    if run.settings.update_goldens:
        from pytest_rlregress.goldens.recording import Recording

        config.pluginmanager.register(Recording(config, run), "rlregress-goldens")
    if run.settings.record_dir:
        from pytest_rlregress.records.writer import RecordWriter

        config.pluginmanager.register(RecordWriter(config, run, run.settings.record_dir), "rlregress-record")
    containment: Any = config.pluginmanager.get_plugin("rlregress-containment")
    if run.settings.hw and containment is not None:
        from pytest_rlregress.progress import RunProgress

        config.pluginmanager.register(RunProgress(config, containment.say), "rlregress-progress")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from pytest_rlregress.annotations import Annotations

        config.pluginmanager.register(Annotations(config, run, terminal), "rlregress-annotations")
    return True


def _session(config: pytest.Config) -> Session:
    from pytest_rlregress import session

    return session.find(config)
