"""The pytest process' handle on a contained child: runs its tests, watches its limits, tells how it ended."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pytest_rlregress.containment import (
    MESSAGE_BYTES,
    NO_DIAGNOSTICS,
    STACKS_SIGNAL,
    Death,
    Diagnostics,
    ImportFile,
    Instruction,
    Limits,
    Order,
    RunTest,
    Stop,
    post_mortem,
)
from pytest_rlregress.containment.stacks import stacks
from pytest_rlregress.logs import ray
from pytest_rlregress.logs.watched import Logs
from pytest_rlregress.util.processes import descendants, go_on, how_it_ended, own_memory
from pytest_rlregress.util.text import load_encodable, show

#: What fixtures have to tear down when the run is stopped.
INTERRUPT_SECONDS = 15.0
_TICK = 0.25  # seconds between two looks at the limits
_STACKS_SECONDS = 1.0
_STOP_SECONDS = 60.0
_LOG_BYTES = 50_000

Receive = Callable[[str, Any], None]


class Child:
    """A contained child that runs tests one after the other until one of them ends it."""

    # When an instruction was given; how far the log went at the last report.
    _begun: float
    _kills: dict[str, int]
    _reported: int

    def __init__(self, connection: Connection, status: socket.socket, log: Path, order: Order, echo: bool) -> None:
        self._connection, self._status, self._echo = connection, status, echo
        self._log = log.open("rb")  # now: a test may remove its temporary folder, where it is
        self._ready = False
        self._echoed = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two parts
        # What the supervisor has said so far; the faults are the libraries mapped, by dying process.
        self._pid: int | None = None
        self._supervisor: int | None = None
        self._faults: dict[int, str] = {}
        self._exit: dict[str, Any] | None = None
        self.diagnostics = NO_DIAGNOSTICS
        self.logs = Logs(log)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(pickle.dumps(order))

    def await_ready(self, receive: Receive, limits: Limits) -> Death | None:
        """Wait until the child has imported its test files and can run tests; how it ended if it never can."""
        if self._ready:
            return None
        self._begin()
        death = self._wait_for("ready", Limits(limits.start), receive, "not ready to run tests")
        self._ready = death is None
        return death

    def run(self, test: RunTest, limits: Limits, receive: Receive) -> Death | None:
        """Run one test, once the child is ready; every message goes to ``receive(kind, value)``.

        Args:
            test: Which one, and which is next.
            limits: Those of this test, set-up and teardown included.
            receive: Takes the messages of the child.

        Returns:
            None when the test came to its end, else how the child ended.
        """
        self.logs.begin()
        self._faults.clear()
        self.diagnostics = NO_DIAGNOSTICS
        self._begin(test)
        return self._wait_for("done", limits, receive, "no end")

    def try_import(self, file: Path, limits: Limits) -> Death | None:
        """Import a test file as pytest does; how the child died of it, if it did."""
        errors: list[str] = []

        def receive(kind: str, value: Any) -> None:
            if kind == "error":
                errors.append(value)

        death = self.await_ready(receive, limits)
        if death is None:
            self._begin(ImportFile(str(file)))
            death = self._wait_for("done", limits, receive, "the import had no end")
        return death and replace(death, message="\n".join([death.message, *errors]))

    def stop(self, receive: Receive) -> Death | None:
        """Ask the child to tear down what it holds; return its death if that failed. ``close`` comes next."""
        self._begin(Stop())
        return self._wait_for("end", Limits(_STOP_SECONDS), receive, "teardown had no end")

    def interrupt(self) -> None:
        """Ctrl-C for the child: it may tear down what its test holds, for a while."""
        self._signal(signal.SIGINT)
        self._await_exit(INTERRUPT_SECONDS)

    def close(self) -> tuple[int, ...]:
        """Have the supervisor kill what is left; the pids of all that are dead then."""
        self._connection.close()
        with contextlib.suppress(OSError):
            self._status.shutdown(socket.SHUT_WR)
        self._await_exit(_STOP_SECONDS)
        self._status.close()
        self._log.close()
        own = (self._pid,) if self._pid else ()
        return *own, *map(int, self._left())

    def output(self, begin: int, end: int | None = None) -> str:
        """Text of the child's log between two sizes of it; of much, the end."""
        end = self.size() if end is None else end
        shown = max(begin, end - _LOG_BYTES)
        self._log.seek(shown)
        text = self._log.read(end - shown).decode(errors="replace")
        return f"[… {shown - begin:,} bytes before this]\n{text}" if shown > begin else text

    def _look(self) -> Diagnostics:
        """Look for what forks of the child, Ray's processes and engines have left since the test began."""
        dead = self.logs.deaths()
        faults = [(f"native libraries of process {pid} at its death", text) for pid, text in self._faults.items()]
        deaths = [(death.message, death.stack or "no stack in its log") for death in dead]
        signal_name = next((death.signal for death in dead if death.signal), None)
        return Diagnostics((*faults, *deaths, *self.logs.tails()), signal_name)

    def size(self) -> int:
        """Bytes in the child's log so far."""
        return os.fstat(self._log.fileno()).st_size

    def _begin(self, instruction: Instruction | None = None) -> None:
        """Note the time, and what was reported and killed so far; give the child an instruction."""
        self._begun, self._kills, self._reported = time.monotonic(), post_mortem.count_kills(), self.size()
        if instruction is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the supervisor tells of its end
                self._connection.send_bytes(pickle.dumps(instruction))

    def _wait_for(self, end: str, limits: Limits, receive: Receive, what: str) -> Death | None:
        """Take in all that the child sends until the message ``end``; return how the child ended, if it did."""
        deadline = self._begun + limits.seconds
        sources: list[Any] = [self._connection, self._status]
        while True:
            ready = wait(sources, max(0.0, min(_TICK, deadline - time.monotonic())))
            # What the child sent before it died comes first.
            while self._connection in ready and self._connection.poll():
                try:
                    kind, value = load_encodable(self._connection.recv_bytes())
                except (EOFError, OSError):
                    sources.remove(self._connection)
                    break
                if kind == end:
                    self._echo_output()
                    return None
                if kind == "waited":  # for others: no time of this test's
                    deadline += value
                elif kind == "log":
                    path, ended = value
                    self.logs.watch(Path(path), ended)
                elif kind == "report":
                    report, size = value
                    if report["outcome"] == "failed" and self.diagnostics is NO_DIAGNOSTICS:
                        # Now: its teardown may remove a Ray session's folder, and fail too.
                        self.diagnostics = self._look()
                    receive(kind, [report, self.output(self._reported, size)])
                    self._reported = size
                else:
                    receive(kind, value)
            self._echo_output()
            if self._status in ready:
                self._receive_status()
                if self._exit is not None:
                    return self._crash()
            elif breach := self._breach(limits, deadline, what):
                return self._end(*breach)

    def _breach(self, limits: Limits, deadline: float, what: str) -> tuple[str, str] | None:
        """Return the limit that is broken now, if any: the kind of death and why."""
        if time.monotonic() >= deadline:
            return "hung", f"{what} after {limits.seconds:g} s"
        quotation = self.logs.stalled(limits.stall)
        if quotation:
            return "hung", f"stalled: no end {limits.stall:g} s after its engine logged an error\n{quotation}"
        if limits.memory and self._supervisor:
            used = sum(own_memory(process.pid) for process in descendants(self._supervisor))
            if used > limits.memory:
                gib, limit = used / 2**30, limits.memory / 2**30
                return "crashed", f"killed: it used {gib:.3g} GiB of memory, its limit is {limit:.3g} GiB"
        return None

    def _crash(self) -> Death:
        """Return what the dead child died of."""
        name, message = how_it_ended((self._exit or {})["exit"])
        if name == "SIGKILL":
            message += f"\n{post_mortem.explain_kill(self._kills)}"
        return self._death("crashed", name, message)

    def _end(self, kind: str, message: str) -> Death:
        """Kill the child for a limit it broke, and keep what it was doing."""
        sections = []
        if kind == "hung" and self._pid:
            found = stacks(self._pid, reaper=self._supervisor)
            sections.append(("stacks of the contained process and its descendants", found))
        # Last, because a signal interrupts what the test waits in.
        self._signal(STACKS_SIGNAL)
        wait([self._status], _STACKS_SECONDS)
        self._signal(signal.SIGKILL)
        self._await_exit(_STOP_SECONDS)
        return self._death(kind, None, message, sections)

    def _death(self, kind: str, name: str | None, message: str, sections: Sequence[tuple[str, str]] = ()) -> Death:
        left = ", ".join(f"{pid} {name}" for pid, name in self._left().items())
        looked = self._look().texts
        if kind == "hung" and (waits := ray.unscheduled("\n".join(text for _, text in looked))):
            message += f": Ray says: {waits}"
        found = [*sections, *looked, ("killed with the contained process", left)]
        told = tuple((title, text) for title, text in found if text)
        return Death(kind, name, message, self.output(self._reported), told, time.monotonic() - self._begun)

    def _left(self) -> dict[str, str]:
        """Return the processes that the supervisor has killed, with their names."""
        left: dict[str, str] = (self._exit or {}).get("left", {})
        return left

    def _receive_status(self) -> None:
        try:
            data = self._status.recv(MESSAGE_BYTES)
        except ConnectionResetError:  # a signal came after the supervisor's last look; its messages are still there
            data = self._status.recv(MESSAGE_BYTES)
        message: dict[str, Any] = json.loads(data) if data else {"exit": None}
        if "pid" in message:
            self._pid, self._supervisor = message["pid"], message["supervisor"]
        elif "fault" in message:
            self._faults[message["fault"]] = message["libraries"]
        else:
            self._exit = message

    def _await_exit(self, seconds: float) -> None:
        """Wait for the supervisor's last word, which comes when no descendant is left."""
        deadline = time.monotonic() + seconds
        while self._exit is None and time.monotonic() < deadline:
            if wait([self._status], _TICK):
                self._receive_status()
            elif self._supervisor:  # a test may have stopped it (SIGSTOP); it is there as long as its socket is open
                go_on(self._supervisor)

    def _signal(self, number: signal.Signals) -> None:
        """Have the supervisor send the child a signal: it collects the child, whose id may be another's after that."""
        with contextlib.suppress(OSError):
            self._status.send(str(int(number)).encode())

    def _echo_output(self) -> None:
        """For ``-s`` and ``--capture=tee-sys``: copy what is new in the log to standard output."""
        if not self._echo:
            return
        self._log.seek(self._echoed)
        while data := self._log.read(_LOG_BYTES):
            self._echoed += len(data)
            show(sys.stdout, self._decoder.decode(data))
