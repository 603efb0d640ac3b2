"""pytest inside a contained child: collects its group's files, runs what it is told, sends the reports back."""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Generator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

#: In the child's ``config.stash``: the channel to the pytest process.
CHANNEL: pytest.StashKey[Channel] = pytest.StashKey()


#: Makes a child write the stacks of its threads to its log.
STACKS_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class Order:
    """What the child needs to be the same pytest as its parent: pickled, first message on the channel."""

    options: dict[str, Any]
    files: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    workerinput: dict[str, Any]
    path: list[str] = field(default_factory=lambda: list(sys.path))


class Channel:
    """Messages to the pytest process, as JSON."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, kind: str, value: Any = None) -> None:
        """Send one message."""
        self._connection.send_bytes(json.dumps([kind, value]).encode())

    def receive(self) -> Any:
        """Wait for the next instruction; None when the pytest process is gone or wants no more."""
        try:
            return json.loads(self._connection.recv_bytes())
        except EOFError:
            return None


def main(descriptor: int) -> None:
    """Run the child's pytest over the channel ``descriptor``; ends the process, never returns."""
    # Descriptor 2 belongs to pytest's capture during a test; the log stays reachable through this copy.
    log = os.dup(2)
    faulthandler.enable(file=log)
    faulthandler.register(STACKS_SIGNAL, file=log, all_threads=True)
    connection = Connection(descriptor)
    channel = Channel(connection)
    try:
        order: Order = pickle.loads(connection.recv_bytes())
        _run(order, channel)
        channel.send("end")
    except BaseException:
        channel.send("error", traceback.format_exc())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Interpreter teardown of an imported stack takes a second and can crash on its own.
        os._exit(0)


def _run(order: Order, channel: Channel) -> None:
    os.chdir(order.folder)
    sys.path[:] = order.path
    os.environ.clear()
    os.environ.update(order.environment)
    config = pytest.Config.fromdictargs(order.options, list(order.files))
    # Plugins that write files (junit, html, cache) leave that to the process that is not a worker.
    config.workerinput = order.workerinput  # type: ignore[attr-defined]
    config.stash[CHANNEL] = channel
    config.pluginmanager.register(Worker(channel), "rlregress-worker")
    config.hook.pytest_cmdline_main(config=config)


class Worker:
    """The child's side of the conversation: ``run`` instructions in, reports out."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._config: pytest.Config

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the config for the reports."""
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests that are asked for, in the order they are asked for."""
        items = {key_of(item): item for item in session.items}
        self._channel.send("ready")
        while (instruction := self._channel.receive()) is not None:
            key, following = instruction
            if key not in items:
                self._channel.send("error", f"{key} was not collected again in the contained child")
            else:
                item = items[key]
                # While it is not known what follows, the session stands in: only session fixtures stay.
                after = session if following == "" else items.get(following)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            self._channel.send("done", key)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say of an exception what a report leaves out: its classes and its frames."""
        report = yield
        if call.excinfo is not None:
            report.rlregress_exception = describe(call.excinfo)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report home."""
        self._channel.send(
            "report", self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported here, though it could in the pytest process."""
        if report.failed:
            self._channel.send("error", report.longreprtext)

    def pytest_internalerror(self, excrepr: object) -> None:
        """An error in pytest or one of its plugins, or a fixture that failed in the last teardown."""
        self._channel.send("error", str(excrepr))


def key_of(item: pytest.Item) -> str:
    """What a test is called on both sides: node ids depend on the arguments that a file was collected by."""
    return f"{item.path}::{item.nodeid.partition('::')[2]}"


def describe(excinfo: pytest.ExceptionInfo[BaseException]) -> dict[str, Any]:
    """Classes (most derived first), message and frames (``file:function``, outermost first) of an exception."""
    try:
        message = str(excinfo.value)
    except Exception as error:
        message = f"<str() of the exception raised {type(error).__name__}>"
    return {
        "exceptions": [f"{cls.__module__}.{cls.__qualname__}" for cls in excinfo.type.__mro__[:-1]],
        "message": message,
        "frames": [f"{Path(entry.path).as_posix()}:{entry.name}" for entry in excinfo.traceback],
    }
