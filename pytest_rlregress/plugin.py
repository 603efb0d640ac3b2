"""The pytest plugin: declares options, markers and fixtures; all else is imported when it is needed."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress.fixtures import declare_engines, declare_ray, declare_run, declare_steps
from pytest_rlregress.harness import OPENED, collection, settings
from pytest_rlregress.harness.collection import STACK_FIXTURES, is_contained, is_ours

if TYPE_CHECKING:
    from pytest_rlregress.harness.protocol import Protocol
    from pytest_rlregress.harness.session import Session

pytest.register_assert_rewrite("pytest_rlregress.scenarios")

MARKERS = (
    "reproduces(id, fidelity=None, expected=None): the test does the failing act of the documented failure; the plugin "
    "judges what comes out. fidelity: 'real', 'stand-in' or 'injected', and expected: 'reproduced' or 'absent', where "
    "the test differs from its failure's entry.",
    "guards(id, fidelity=None): the same act with the remedy; must pass.",
    "needs(*components): components of the stack a test needs (torch, vllm, ray, …), parts of them (vllm-engine) or "
    "interfaces ('vllm:LLM(seed)'); missing ones make it unavailable, broken ones block it.",
    "hw(*profiles, capability=None, memory=None, count=None): a hardware test, run only where the profile of the run "
    'fits: hw(capability=">=9.0", memory=">=70GiB", count=2), or hw("h20") where no other model will do.',
    "isolated(group=None, timeout=None, memory=None, stall=None, env=None, fresh=False): run in a process of its own, "
    "or with those of its group; timeout in seconds, memory like '4GiB', stall: seconds to go on after its engine "
    "logged an error; env or fresh=True: from an interpreter that has imported nothing.",
    "long: a contained test of a minute and more, run with --rl-long only.",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and ini values: see ``pytest_rlregress.harness.settings.OPTIONS``."""
    settings.declare(parser)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Print the profiles and end, for ``--hw=list``."""
    return _session(config).list_profiles() if settings.resolve(config).hw == "list" else None


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers; where an option asks for it, look at the machine before anything is collected."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    for fixtures in (declare_run, declare_engines, declare_ray, declare_steps):
        config.pluginmanager.register(fixtures)
    # Registered now, and not with the module: around what other plugins register when they are configured (--ff).
    hooks = Hooks(config)
    config.pluginmanager.register(hooks, "rlregress-hooks")
    resolved = settings.resolve(config)
    if resolved.hw or resolved.require or resolved.record_dir or resolved.update_goldens:
        hooks.open()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Watch for test files whose import brings the stack into this process; mark checks that are guards."""
    if isinstance(collector, pytest.Module) and collector.path.name == collection.REMEDY_CHECKS:
        failure = _session(collector.config).find_replaced_failure(collector.path)
        if failure:
            collector.add_marker(pytest.mark.guards(failure.id, fidelity="stand-in"))
    return (yield from collection.watch(collector))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test of shipped scenarios where no warning is an error."""
    with collection.warnings_shown(item.path):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """Keep the stack out of pytest's own process: a fixture that only shows when the test runs is refused there."""
    if fixturedef.argname in STACK_FIXTURES and is_ours(fixturedef):
        from pytest_rlregress.harness.inline import check_that_fixture_may_run

        check_that_fixture_may_run(request)


class Hooks:
    """The hooks of a run, in its order; none does anything before the session is opened.

    It is opened by an option that says so, for the first collected test of ours or, where xdist's workers collect, for
    the first verdict that one of them sends.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._exit_code: int | None = None

    def open(self) -> None:
        """Open the session, and register what reports of it: once a run, and not in each of its processes."""
        run = _session(self._config)
        if not run.open() or hasattr(self._config, "workerinput"):
            return
        from pytest_rlregress.harness.results import RunResults
        from pytest_rlregress.harness.terminal import Terminal

        register = self._config.pluginmanager.register
        results = RunResults(self._config)
        if run.settings.record_dir:
            from pytest_rlregress.harness.record_writer import RecordWriter

            results = RecordWriter(self._config, run, run.settings.record_dir)
        terminal = Terminal(self._config, run, results)
        register(terminal, "rlregress-terminal")
        register(results, "rlregress-results")
        results.catch_up()
        if run.settings.update_goldens:
            from pytest_rlregress.goldens.recording import Recording

            register(Recording(self._config, run), "rlregress-goldens")
        if run.settings.hw and not run.inline:
            from pytest_rlregress.harness.durations import RunProgress

            register(RunProgress(self._config, run.say), "rlregress-progress")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            from pytest_rlregress.harness.github_annotations import GitHub

            register(GitHub(self._config, run, results, terminal), "rlregress-github")

    # -- collection ------------------------------------------------------------------------------------------------

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect the checks of a remedy whose place the user's own function takes."""
        if file_path.name != collection.REMEDY_CHECKS or parent.session.isinitpath(file_path):
            return None  # pytest collects what the command line names by itself
        if not _session(self._config).find_replaced_failure(file_path):
            return None
        module: pytest.Collector = parent.ihook.pytest_pycollect_makemodule(module_path=file_path, parent=parent)
        return module

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """Import a file with tests of ours in a child first."""
        if not self._contains:
            return None
        run = _session(self._config)
        return collection.try_import(module_path, parent, self._protocol.pool, run.limits, every_file=run.every_file)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Find out what the tests are, choose and order them: before and after other plugins do so."""
        with collection.usage_errors_shown(session, items):
            if any(map(is_contained, items)):
                from pytest_rlregress.harness.items import choose, order

                self.open()
                run = _session(config)
                every = [*items]
                if left_out := choose(items, run):
                    config.hook.pytest_deselected(items=left_out)
                if not run.is_child:
                    collection.warn_of_slow_imports(config, every)
                if self._contains:  # --stepwise goes on from a place in this order
                    order(items)
        with collection.usage_errors_shown(session, items):
            yield
            if opened := self._opened:
                from pytest_rlregress.harness.items import leave_out_long, order

                if left_out := leave_out_long(items, opened):
                    config.hook.pytest_deselected(items=left_out)
                    if hasattr(config, "workeroutput"):  # what only one of xdist's workers knows
                        config.workeroutput["rlregress_left_out"] = len(left_out)
                if self._contains:
                    order(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start importing for the tests that were selected; say so if they run here."""
        run = self._opened
        if run is None or run.is_child:
            return
        from pytest_rlregress.harness.inline import InlineTests, is_asked_for, warn

        run.inline = run.inline or is_asked_for(session)
        if run.inline:
            warn(session)
            self._config.pluginmanager.register(InlineTests(run), "rlregress-inline")
        else:
            self._protocol.begin(session)

    # -- under pytest-xdist ----------------------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell one of xdist's workers where to write down which tests share a child."""
        if self._contains:
            node.workerinput["rlregress_groups"] = str(self._protocol.pool.groups_file)

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Generator[None, Any, Any]:
        """Under ``-n`` tests that share a child go to one worker, unless ``--dist`` or a conftest.py says otherwise."""
        given = yield
        if not self._contains or config.getoption("dist") != "load":
            return given
        # Of the shipped scenarios a conftest.py says nothing: they are none of its tests.
        shipped = _session(config).settings.hw and config.args_source != pytest.Config.ArgsSource.ARGS
        if not shipped and not type(given).__module__.startswith("xdist."):
            return given
        from pytest_rlregress.harness.durations import ByGroup

        return ByGroup(config, log, self._protocol.pool.groups_file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a contained test in its child; others go on as always."""
        return self._protocol.run(item, nextitem) if self._contains else None

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """pytest-timeout's limit for a contained test is this plugin's to watch: its own would end the session."""
        if not self._contains:
            return None
        from pytest_rlregress.harness.items import limit_seconds

        return limit_seconds(item, float(settings.timeout), _session(self._config))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch, in the process that it runs in, whether a test does the failing act."""
        if not (run := self._opened) or not (run.inline or run.is_child):
            return (yield)
        from pytest_rlregress.harness.interface import watch_act
        from pytest_rlregress.harness.items import find

        test = find(item)
        if test is None or test.side is None:
            return (yield)
        return (yield from watch_act(item, test.components if test.reproduces else None))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say of an exception what a report leaves out, in the process that the test runs in."""
        report = yield
        if call.excinfo is not None and (run := self._opened) and (run.inline or run.is_child):
            from pytest_rlregress.harness.interface import describe_of

            report.rlregress_exception = describe_of(item, call)  # type: ignore[attr-defined]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Open the session for the first verdict that one of xdist's workers sends: they alone know the tests."""
        if self._opened is not None or not hasattr(report, "node"):
            return
        from pytest_rlregress.harness.reports import read_properties

        if {"verdict", "checks"} & read_properties(report).keys():
            manager = self._config.pluginmanager
            before = manager.get_plugins()
            self.open()
            # Only plugins that were there when pytest began this call get the report from it.
            manager.subset_hook_caller("pytest_runtest_logreport", before)(report=report)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """All children have ended when other plugins look at the end of the loop, as coverage does."""
        result = yield
        self._close()
        return result

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Ctrl-C, SIGTERM or ``pytest.exit()``."""
        self._exit_code = getattr(excinfo.value, "exit_code", None)
        if "_protocol" in vars(self):
            self._protocol.interrupt()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Nothing survives the session, even if a report cannot be written; the exit code names the signal."""
        if self._exit_code is not None:
            session.exitstatus = self._exit_code
        self._close()

    def _close(self) -> None:
        if "_protocol" in vars(self):
            self._protocol.close()

    @property
    def _opened(self) -> Session | None:
        return self._config.stash.get(OPENED, None)

    @property
    def _contains(self) -> bool:
        """Whether contained tests of this process run in children."""
        return (run := self._opened) is not None and not run.inline and not run.is_child

    @cached_property
    def _protocol(self) -> Protocol:
        from pytest_rlregress.harness.protocol import Protocol

        protocol = Protocol(self._config, _session(self._config))
        # A run that is interrupted while it starts, as xdist's workers do, has no end of its session.
        self._config.add_cleanup(protocol.close)
        return protocol


def _session(config: pytest.Config) -> Session:
    from pytest_rlregress.harness import session

    return session.find(config)
