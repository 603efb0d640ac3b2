"""The pytest process' handle on a contained child: runs its tests, watches its limits, tells how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pytest_rlregress.containment import post_mortem
from pytest_rlregress.containment.logs import Logs
from pytest_rlregress.containment.server import MESSAGE_BYTES
from pytest_rlregress.containment.stacks import stacks
from pytest_rlregress.containment.usage import Usage
from pytest_rlregress.containment.worker import IMPORT, STACKS_SIGNAL, Order
from pytest_rlregress.util.processes import descendants, own_memory

#: What fixtures have to tear down when the run is stopped.
INTERRUPT_SECONDS = 15.0
_TICK = 0.25  # seconds between two looks at the limits
_STACKS_SECONDS = 1.0
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_LOG_BYTES = 50_000

Hear = Callable[[str, Any], None]


@dataclass(frozen=True)
class Limits:
    """What a test may use: seconds, bytes of memory (None: any), seconds to go on after its engine logged an error."""

    seconds: float
    memory: int | None = None
    stall: float = float("inf")


@dataclass(frozen=True)
class Diagnostics:
    """What the other processes of a test had left when it failed.

    Attributes:
        texts: Titled: the libraries of forks that died of a native fault, the deaths that Ray's logs tell of, the last
            lines of the logs.
        signal: Name of the signal that one of them died of.
    """

    texts: tuple[tuple[str, str], ...] = ()
    signal: str | None = None


NO_DIAGNOSTICS = Diagnostics()


@dataclass(frozen=True)
class Death:
    """How a contained child ended before its test did.

    Attributes:
        kind: ``crashed`` or ``hung``.
        signal: Name of the signal it died of, or None for an exit.
        message: For people: one line, and what is quoted.
        log: What the child wrote to its log since the phase began, stacks included.
        sections: Titled texts: stacks, logs, libraries, what was killed with it.
        seconds: How long the test had run.
    """

    kind: str
    signal: str | None
    message: str
    log: str
    sections: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


@dataclass
class _Beginning:
    """How things stood when an instruction was given; ``log_size`` moves on with every report."""

    log_size: int
    time: float = field(default_factory=time.monotonic)
    memory: post_mortem.Memory = field(default_factory=post_mortem.memory)


@dataclass
class _Ending:
    """What the supervisor has said so far."""

    pid: int | None = None
    supervisor: int | None = None
    faults: dict[int, str] = field(default_factory=dict)  # the libraries mapped, by dying process
    exit: dict[str, Any] | None = None


class Child:
    """A contained child that runs tests one after the other until one of them ends it."""

    def __init__(self, connection: Connection, status: socket.socket, log: Path, order: Order, echo: bool) -> None:
        self._connection, self._status, self._echo = connection, status, echo
        self._log = log.open("rb")  # now: a test may remove its temporary folder, where it is
        self._said = _Ending()
        self._ready = False
        self._echoed = 0
        self.diagnostics = NO_DIAGNOSTICS
        self.logs, self.usage = Logs(log), Usage()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(pickle.dumps(order))

    def await_ready(self, hear: Hear) -> Death | None:
        """Wait until the child has imported its test files and can run tests; how it ended if it never can."""
        if self._ready:
            return None
        death = self._listen("ready", Limits(_START_SECONDS), hear, "not ready to run tests", [])
        self._ready = death is None
        return death

    def run(self, key: str, following: str | None, limits: Limits, hear: Hear) -> Death | None:
        """Run one test, once the child is ready; every message goes to ``hear(kind, value)``.

        Args:
            key: The test, as ``worker.key_of`` names it.
            following: The test that follows in this child, None for none, "" for not known yet.
            limits: Those of this test, set-up and teardown included.
            hear: Takes the messages of the child.

        Returns:
            None when the test came to its end, else how the child ended.
        """
        self.logs.begin()
        self.usage.forget()
        self._said.faults.clear()
        self.diagnostics = NO_DIAGNOSTICS
        return self._listen("done", limits, hear, "no end", [key, following])

    def try_import(self, file: Path, limits: Limits) -> Death | None:
        """Import a test file as pytest does; how the child died of it, if it did."""
        errors: list[str] = []

        def hear(kind: str, value: Any) -> None:
            if kind == "error":
                errors.append(value)

        death = self.await_ready(hear) or self._listen(
            "done", limits, hear, "the import had no end", [str(file), IMPORT]
        )
        return death and replace(death, message="\n".join([death.message, *errors]))

    def stop(self, hear: Hear) -> Death | None:
        """Let the child tear down what it still holds; how it died if it did not manage. ``close`` comes next."""
        return self._listen("end", Limits(_STOP_SECONDS), hear, "teardown had no end", None)

    def interrupt(self) -> None:
        """Ctrl-C for the child: it may tear down what its test holds, for a while."""
        self._signal(signal.SIGINT)
        self._await_exit(INTERRUPT_SECONDS)

    def close(self) -> tuple[int, ...]:
        """Let go: the supervisor kills what is left, and says when nothing is; the pids of all that are dead then."""
        self._connection.close()
        with contextlib.suppress(OSError):
            self._status.shutdown(socket.SHUT_WR)
        self._await_exit(_STOP_SECONDS)
        self._status.close()
        self._log.close()
        own = (self._said.pid,) if self._said.pid else ()
        return *own, *map(int, (self._said.exit or {}).get("left", {}))

    def output(self, begin: int, end: int | None = None) -> str:
        """What stands in the child's log between two sizes of it; of much, the end."""
        end = self.size() if end is None else end
        shown = max(begin, end - _LOG_BYTES)
        self._log.seek(shown)
        text = self._log.read(end - shown).decode(errors="replace")
        return f"[… {shown - begin:,} bytes before this]\n{text}" if shown > begin else text

    def _look(self) -> Diagnostics:
        """Look for what forks of the child, Ray's processes and engines have left since the test began."""
        dead = self.logs.deaths()
        faults = [(f"native libraries of process {pid} at its death", text) for pid, text in self._said.faults.items()]
        deaths = [(death.message, death.stack or "no stack in its log") for death in dead]
        signal_name = next((death.signal for death in dead if death.signal), None)
        return Diagnostics((*faults, *deaths, *self.logs.tails()), signal_name)

    def size(self) -> int:
        """Bytes in the child's log so far."""
        return os.fstat(self._log.fileno()).st_size

    def _listen(self, until: str, limits: Limits, hear: Hear, what: str, instruction: list[Any] | None) -> Death | None:
        """Give an instruction (an empty one is none) and hear all ``until`` it is done, or how the child ended."""
        begun = _Beginning(self.size())
        deadline = begun.time + limits.seconds
        sources: list[Any] = [self._connection, self._status]
        if instruction != []:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is told by the supervisor
                self._connection.send_bytes(json.dumps(instruction).encode())

        while True:
            ready = wait(sources, max(0.0, min(_TICK, deadline - time.monotonic())))
            # What the child said before it died comes first.
            while self._connection in ready and self._connection.poll():
                try:
                    kind, value = json.loads(self._connection.recv_bytes())
                except (EOFError, OSError):
                    sources.remove(self._connection)
                    break
                if kind == until:
                    self._echo_output()
                    return None
                if kind == "log":
                    self.logs.watch(Path(value))
                elif kind == "begun":
                    self.usage.begin()
                elif kind == "usage":
                    self.usage.hear(value)
                elif kind == "report":
                    report, size = value
                    if report["outcome"] == "failed" and self.diagnostics is NO_DIAGNOSTICS:
                        self.diagnostics = (
                            self._look()
                        )  # now: its teardown may remove a Ray session's folder, and fail too
                    hear(kind, [report, self.output(begun.log_size, size)])
                    begun.log_size = size
                else:
                    hear(kind, value)
            self._echo_output()
            if self._status in ready:
                self._hear_supervisor()
                if self._said.exit is not None:
                    return self._crash(begun)
            elif breach := self._breach(limits, deadline, what):
                return self._end(*breach, begun)
            elif not ready and self._said.pid and self._said.supervisor:
                self.usage.look(self._said.pid, self._said.supervisor)

    def _breach(self, limits: Limits, deadline: float, what: str) -> tuple[str, str] | None:
        """The limit that is broken now, if any: the kind of death and why."""
        if time.monotonic() >= deadline:
            return "hung", f"{what} after {limits.seconds:g} s"
        quotation = self.logs.stalled(limits.stall)
        if quotation:
            return "hung", f"stalled: no end {limits.stall:g} s after its engine logged an error\n{quotation}"
        if limits.memory and self._said.supervisor:
            used = sum(own_memory(process.pid) for process in descendants(self._said.supervisor))
            if used > limits.memory:
                gib, limit = used / 2**30, limits.memory / 2**30
                return "crashed", f"killed: it used {gib:.3g} GiB of memory, its limit is {limit:.3g} GiB"
        return None

    def _crash(self, begun: _Beginning) -> Death:
        """The child is dead: what it died of."""
        ended = self._said.exit or {}
        name, message = how_it_ended(ended["exit"])
        if name == "SIGKILL":
            message += f"\n{post_mortem.killed(begun.memory, self._said.pid)}"
        return self._death("crashed", name, message, begun, ())

    def _end(self, kind: str, message: str, begun: _Beginning) -> Death:
        """Kill the child for a limit it broke, and keep what it was doing."""
        sections = []
        if self._said.pid and self._said.supervisor:
            self.usage.look(self._said.pid, self._said.supervisor)
        if kind == "hung" and self._said.pid:
            found = stacks(self._said.pid, reaper=self._said.supervisor)
            sections.append(("stacks of the contained process and its descendants", found))
        # Last, because a signal interrupts what the test waits in.
        self._signal(STACKS_SIGNAL)
        wait([self._status], _STACKS_SECONDS)
        self._signal(signal.SIGKILL)
        self._await_exit(_STOP_SECONDS)
        return self._death(kind, None, message, begun, sections)

    def _death(
        self, kind: str, name: str | None, message: str, begun: _Beginning, sections: Sequence[tuple[str, str]]
    ) -> Death:
        left = (self._said.exit or {}).get("left", {})
        found = [
            *sections,
            *self._look().texts,
            ("killed with the contained process", ", ".join(f"{pid} {name}" for pid, name in left.items())),
        ]
        told = tuple((title, text) for title, text in found if text)
        return Death(kind, name, message, self.output(begun.log_size), told, time.monotonic() - begun.time)

    def _hear_supervisor(self) -> None:
        data = self._status.recv(MESSAGE_BYTES)
        message: dict[str, Any] = json.loads(data) if data else {"exit": None}
        if "pid" in message:
            self._said.pid, self._said.supervisor = message["pid"], message["supervisor"]
        elif "fault" in message:
            self._said.faults[message["fault"]] = message["libraries"]
        else:
            self._said.exit = message

    def _await_exit(self, seconds: float) -> None:
        """Wait for the supervisor's last word, which comes when no descendant is left."""
        deadline = time.monotonic() + seconds
        while self._said.exit is None and wait([self._status], max(0.0, deadline - time.monotonic())):
            self._hear_supervisor()

    def _signal(self, number: signal.Signals) -> None:
        if self._said.pid and self._said.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._said.pid, number)

    def _echo_output(self) -> None:
        """For ``-s`` and ``--capture=tee-sys``: copy what is new in the log to standard output."""
        if self._echo and (size := self.size()) > self._echoed:
            sys.stdout.write(self.output(self._echoed, size))
            sys.stdout.flush()
            self._echoed = size


def how_it_ended(status: int | None, raw: bool = True) -> tuple[str | None, str]:
    """Signal name, if any, and one line for people, of a wait status (or of a Popen return code)."""
    if status is None:
        return None, "the process and its supervisor were killed"
    code = os.waitstatus_to_exitcode(status) if raw else status
    if code >= 0:
        return None, f"the process ended with exit code {code} in the middle of the test"
    name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
    return name, f"died of {name} ({signal.strsignal(-code)})"
