"""pytest inside a contained child: collects its group's files, runs what it is told, sends the reports back."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress.containment import (
    CHANNEL,
    STACKS_SIGNAL,
    ImportFile,
    Instruction,
    Next,
    Order,
    RunTest,
    Stop,
    child_config,
    key_of,
)
from pytest_rlregress.containment.leaks import PLUGIN, Leaks
from pytest_rlregress.util.processes import allow_tracing

#: The channel of the child that this process is.
_channel: Channel | None = None


class Channel:
    """Messages to the pytest process, as JSON, and its instructions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, kind: str, value: Any = None) -> None:
        """Send one message."""
        self._connection.send_bytes(json.dumps([kind, value], default=repr).encode())

    def receive(self) -> Instruction:
        """Wait for the next instruction; the end of the pytest process is one, too."""
        try:
            instruction: Instruction = pickle.loads(self._connection.recv_bytes())
        except EOFError:
            return Stop()
        return instruction


def wait_for_turn(take: Callable[[], bool], whom: str) -> None:
    """Return once ``take`` does what it is to do; the wait is not in the limit of a contained test, and is told of."""
    begun = told = time.monotonic()
    while not take():
        time.sleep(0.25)
        now = time.monotonic()
        if _channel is not None:
            _channel.send("waited", now - begun)
            if now - told > 10:
                _channel.send("say", f"waiting for {whom}")
                told = now
            begun = now


def main(channel_descriptor: int, log: int, faults: int) -> None:
    """Run the child's pytest; ends the process, never returns.

    Args:
        channel_descriptor: Socket to the pytest process.
        log: Descriptor of the child's log, which takes all its output.
        faults: Descriptor that the stack of a dying process goes to.
    """
    allow_tracing()
    os.register_at_fork(after_in_child=allow_tracing)
    output = Output(log, faults)
    output.open()
    connection = Connection(channel_descriptor)
    global _channel
    channel = _channel = Channel(connection)
    status = 1
    try:
        order: Order = pickle.loads(connection.recv_bytes())
        _be_in(order)
        measurement = None if order.coverage is None else child_config.Measurement(order.coverage)
        _run(order, channel, output, measurement)
        channel.send("end")
        status = 0
    except BaseException:
        try:
            channel.send("error", traceback.format_exc())
        except OSError:  # a test has closed the channel
            traceback.print_exc()
    finally:
        output.flush()
        # Interpreter teardown of an imported stack takes a second and can crash on its own.
        os._exit(status)


def _be_in(order: Order) -> None:
    """Take over the pytest process' folder, variables and import path."""
    os.chdir(order.folder)
    sys.path[:] = order.path
    os.environ.clear()
    os.environ.update(order.environment)
    tempfile.tempdir = None  # the server may have looked it up under another TMPDIR


def _run(order: Order, channel: Channel, output: Output, measurement: child_config.Measurement | None) -> None:
    """Run pytest; again without an installed plugin that cannot start in a child."""
    without: list[str] = []
    options = child_config.unpickled(order.options)
    while True:
        config = child_config.configured(options, order.arguments, order.markers, without)
        # Plugins that write files (junit, html, cache) leave that to the process that is not one of xdist's workers.
        config.workerinput, config.workeroutput = order.workerinput, {}
        config.stash[CHANNEL] = channel
        worker = Worker(channel, output, order)
        config.pluginmanager.register(worker, "rlregress-worker")
        if measurement is not None:
            config.pluginmanager.register(measurement, "rlregress-coverage")
        config.pluginmanager.register(Leaks(reaper=os.getppid()), PLUGIN)
        status = config.hook.pytest_cmdline_main(config=config)
        if worker.ready:
            return
        if worker.culprit is None or worker.culprit in without:
            raise RuntimeError(f"pytest did not start in the contained child: {worker.problem or status}")
        without.append(worker.culprit)
        channel.send("note", f"contained tests run without the plugin {worker.culprit}, which fails in their process")


class Output:
    """Where a child's output goes: standard output and error to its log, a fault's stack to its supervisor."""

    def __init__(self, log: int, faults: int) -> None:
        self._log, self._faults = log, faults

    def open(self) -> None:
        """Point the descriptors there, whatever a test has done to them."""
        # pytest's own plugin takes faulthandler for itself, and so do ray and others.
        faulthandler.enable(file=self._faults)
        faulthandler.register(STACKS_SIGNAL, file=self._log, all_threads=True)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(self._log, descriptor)
            raw = io.FileIO(descriptor, "w", closefd=False)
            # By line: what is still in a buffer when the process dies is lost.
            stream = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
            setattr(sys, name, stream)

    def flush(self) -> None:
        """Write out what Python still holds."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError):  # closed by the test; a full disk
                stream.flush()

    def size(self) -> int:
        """Bytes in the log so far."""
        self.flush()
        return os.fstat(self._log).st_size


class Worker:
    """The child's side of the conversation: ``run`` instructions in, reports out.

    Attributes:
        ready: Whether pytest has come as far as running tests.
        problem: What kept it from that, as text.
        culprit: Name of the installed plugin whose fault that was, or None.
    """

    def __init__(self, channel: Channel, output: Output, order: Order) -> None:
        self._channel, self._output, self._order = channel, output, order
        self._wanted = {path for file in map(Path, order.files) for path in (file, *file.parents)}
        self._pid = os.getpid()
        self._config: pytest.Config
        self.ready, self.problem = False, ""
        self.culprit: str | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the config for the reports."""
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool | None:
        """Collect, unless this child is there to import what it is told."""
        return None if self._order.collects else True

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the other files of a folder that is collected for some of its files."""
        return None if collection_path in self._wanted or not self._order.collects else True

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a file of such a folder that pytest would leave out for its name."""
        if str(file_path) not in self._order.files or parent.session.isinitpath(file_path):
            return None
        if child_config.has_test_name(self._config, file_path):
            return None
        module: pytest.Module = parent.ihook.pytest_pycollect_makemodule(module_path=file_path, parent=parent)
        return module

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Keep every test, whatever other plugins or a conftest.py choose: the pytest process has chosen."""
        every = [*items]
        yield
        known = set(every)
        items[:] = [*every, *(item for item in items if item not in known)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests that are asked for, in the order they are asked for."""
        items = {key_of(item): item for item in session.items}
        self.ready = True
        self._channel.send("ready")
        while True:
            match self._channel.receive():
                case Stop():
                    return True
                case ImportFile(path):
                    with contextlib.suppress(BaseException):  # the pytest process meets the same, and reports it
                        for module in session.perform_collect([path], genitems=False):
                            _ = module.obj  # type: ignore[union-attr]
                case RunTest(key) if key not in items:
                    self._channel.send("error", f"{key} was not collected again in the contained child")
                case RunTest(key, following):
                    # While it is not known what follows, the session stands in: only session fixtures stay.
                    known = items.get(following) if isinstance(following, str) else None
                    after = session if following is Next.UNKNOWN else known
                    self._output.open()
                    items[key].config.hook.pytest_runtest_protocol(item=items[key], nextitem=after)
            self._channel.send("done")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """End a fork of the child that comes back from a test: the tests aren't its to report."""
        if os.getpid() != self._pid:
            if call.excinfo is not None:
                traceback.print_exception(call.excinfo.value)
            self._output.flush()
            os._exit(call.excinfo is not None)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report home, and how far the log goes that belongs to it."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._channel.send("report", [data, self._output.size()])

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """Send a warning to the pytest process; those of collection come up in the pytest process, too."""
        if when == "runtest":
            category, where = warning_message.category, (warning_message.filename, warning_message.lineno)
            name = f"{category.__module__}.{category.__qualname__}"
            self._channel.send("warning", [name, str(warning_message.message), *where, nodeid, location])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported here, though it could in the pytest process."""
        if report.failed:
            self._channel.send("error", report.longreprtext)

    def pytest_internalerror(self, excrepr: object, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """An error in pytest or one of its plugins, or a fixture that failed in the last teardown."""
        if self.ready:
            self._channel.send("error", str(excrepr))
        else:
            self.problem, self.culprit = str(excrepr), child_config.plugin_of(self._config, excinfo)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool:
        """pytest-timeout's limit is the pytest process' to watch, from outside."""
        return True

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """A test that asks for the end of the whole run: ``pytest.exit()``, or a KeyboardInterrupt of its own."""
        error = excinfo.value
        self._channel.send("exit", [getattr(error, "msg", None), getattr(error, "returncode", None)])
