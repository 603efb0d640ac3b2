"""The pytest process' handles on a warm server and on a contained child."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pytest_rlregress.containment.server import MESSAGE_BYTES
from pytest_rlregress.containment.worker import STACKS_SIGNAL, Order

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_rlregress.containment.server import main; main(int(sys.argv[2]), sys.argv[3:])"
)
_STACKS_SECONDS = 1.0
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_INTERRUPT_SECONDS = 15.0
_SAY_EVERY = 5.0


class ContainmentError(RuntimeError):
    """The containment itself failed: a warm server that did not start or went away."""


@dataclass(frozen=True)
class Death:
    """How a contained child ended before its test did.

    Attributes:
        kind: ``crashed`` or ``hung``.
        signal: Name of the signal it died of, or None for an exit.
        message: One line for people.
        log: What the child wrote to its log since the test began, stacks included.
        left: Names of the descendants that were killed with it.
    """

    kind: str
    signal: str | None
    message: str
    log: str
    left: tuple[str, ...] = ()


class Server:
    """A warm server process that has imported ``modules``; forks contained children."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.modules = tuple(modules)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = log
        command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno()), *modules]
        with theirs, log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **environment},
                start_new_session=True,
            )
        self._begun = time.monotonic()
        self._ready: dict[str, Any] | None = None

    def ready(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Wait for the imports; their seconds and failures, the number of threads, whether CUDA is initialised.

        Raises:
            ContainmentError: The server died while importing; the message carries its log.
        """
        while self._ready is None:
            if not wait([self._control], _SAY_EVERY):
                names = dict.fromkeys(module.partition(".")[0] for module in self.modules)
                say(f"importing {', '.join(names)} ({time.monotonic() - self._begun:.0f} s)")
                continue
            data = self._control.recv(MESSAGE_BYTES)
            if not data:
                raise ContainmentError(
                    f"the warm server died while importing {', '.join(self.modules) or 'nothing'} "
                    f"({_how(self._process.wait(), raw=False)[1]}):\n{self._log.read_text(errors='replace')[-4000:]}"
                )
            self._ready = json.loads(data)["ready"]
        return self._ready

    def safe(self, say: Callable[[str], None]) -> bool:
        """Whether forking from here is safe: one thread, no CUDA."""
        ready = self.ready(say)
        return ready["threads"] == 1 and not ready["cuda"]

    def fork(self, order: Order, log: Path, inherit_output: bool) -> Child:
        """Start a contained child; its output goes to ``log`` or, for ``-s``, to this process' own."""
        ours, channel = socket.socketpair()
        status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with channel, their_status, log.open("ab") as out:
            handles = [channel.fileno(), their_status.fileno(), 1 if inherit_output else out.fileno()]
            socket.send_fds(self._control, [b"fork"], handles)
        return Child(Connection(ours.detach()), status, log, order)

    def close(self) -> None:
        """End the server; its children end with their own handles."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Child:
    """A contained child that runs tests one after the other until one of them ends it."""

    def __init__(self, connection: Connection, status: socket.socket, log: Path, order: Order) -> None:
        self._connection, self._status, self.log = connection, status, log
        self._pid: int | None = None
        self._ready = False
        self._connection.send_bytes(pickle.dumps(order))

    def run(self, key: str, following: str | None, seconds: float, hear: Callable[[str, Any], None]) -> Death | None:
        """Run one test; every message goes to ``hear(kind, value)``.

        Args:
            key: The test, as ``worker.key_of`` names it.
            following: The test that follows in this child, None for none, "" for not known yet.
            seconds: Time limit, set-up and teardown included.
            hear: Takes ``report``, ``say`` and ``error`` messages.

        Returns:
            None when the test came to its end, else how the child ended.
        """
        begun_at = self.log.stat().st_size
        if not self._ready:
            limit = f"not ready to run tests after {_START_SECONDS:g} s"
            death = self._listen("ready", time.monotonic() + _START_SECONDS, hear, begun_at, limit)
            if death is not None:
                return death
            self._ready = True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(json.dumps([key, following]).encode())
        return self._listen("done", time.monotonic() + seconds, hear, begun_at, f"no end after {seconds:g} s")

    def stop(self, hear: Callable[[str, Any], None]) -> Death | None:
        """Let the child tear down what it still holds; how it died if it did not manage. ``close`` comes next."""
        begun_at = self.log.stat().st_size
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(b"null")
        limit = f"teardown took more than {_STOP_SECONDS:g} s"
        return self._listen("end", time.monotonic() + _STOP_SECONDS, hear, begun_at, limit)

    def interrupt(self) -> None:
        """Ctrl-C for the child: it may tear down what its test holds, for a while."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGINT)
            self._listen("end", time.monotonic() + _INTERRUPT_SECONDS, lambda kind, value: None, 0, "")

    def close(self) -> None:
        """Let go: the supervisor kills what is left, and says when nothing is."""
        self._connection.close()
        with contextlib.suppress(OSError):
            self._status.shutdown(socket.SHUT_WR)
        self._exit_status()
        self._status.close()

    def _listen(
        self, until: str, deadline: float, hear: Callable[[str, Any], None], begun_at: int, limit: str
    ) -> Death | None:
        sources: list[Any] = [self._connection, self._status]
        while (left := deadline - time.monotonic()) > 0:
            ready = wait(sources, left)
            # What the child said before it died comes first.
            while self._connection in ready and self._connection.poll():
                try:
                    kind, value = json.loads(self._connection.recv_bytes())
                except (EOFError, OSError):
                    sources.remove(self._connection)
                    break
                if kind == until:
                    return None
                hear(kind, value)
            if self._status in ready:
                message = self._status_message()
                if "pid" in message:
                    self._pid = message["pid"]
                    continue
                name, how = _how(message.get("exit"))
                return Death("crashed", name, how, self._text(begun_at), tuple(message.get("left", ())))
        return Death("hung", None, limit, self._stacks(begun_at), self._kill())

    def _status_message(self) -> dict[str, Any]:
        data = self._status.recv(MESSAGE_BYTES)
        return json.loads(data) if data else {"exit": None}

    def _exit_status(self) -> dict[str, Any]:
        """Wait for the supervisor's last word, which comes when no descendant is left."""
        while wait([self._status], _STOP_SECONDS):
            message = self._status_message()
            if "exit" in message:
                return message
        return {}

    def _stacks(self, begun_at: int) -> str:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, STACKS_SIGNAL)
            wait([self._status], _STACKS_SECONDS)
        return self._text(begun_at)

    def _kill(self) -> tuple[str, ...]:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        return tuple(self._exit_status().get("left", ()))

    def _text(self, begun_at: int) -> str:
        with self.log.open("rb") as file:
            file.seek(begun_at)
            return file.read().decode(errors="replace")


def _how(status: int | None, raw: bool = True) -> tuple[str | None, str]:
    """Signal name, if any, and one line for people, of a wait status (or of a Popen return code)."""
    if status is None:
        return None, "the process and its supervisor were killed"
    code = os.waitstatus_to_exitcode(status) if raw else status
    if code >= 0:
        return None, f"the process ended with exit code {code} in the middle of the test"
    name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
    return name, f"died of {name} ({signal.strsignal(-code)})"
