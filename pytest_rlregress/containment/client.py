"""The pytest process' handle on a warm server: starts it, has it fork children."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from pytest_rlregress.containment.child import Child
from pytest_rlregress.containment.child_config import COVERAGE_VARIABLES
from pytest_rlregress.containment.messages import MESSAGE_BYTES, Order
from pytest_rlregress.util.processes import how_it_ended, python_command

_MAIN = "from pytest_rlregress.containment.server import main; main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])"
_SAY_EVERY = 5.0
#: Variables that only children get. It is in them that coverage is measured. To count the devices that
#: CUDA_VISIBLE_DEVICES=MIG-… shows, torch initialises CUDA.
_OF_CHILDREN = (*COVERAGE_VARIABLES, "CUDA_VISIBLE_DEVICES")

# Read when torch is imported. OpenMP's idle threads spin, else: where processes share the cores, a step of a small
# model takes ten times as long. https://gcc.gnu.org/onlinedocs/libgomp/OMP_005fWAIT_005fPOLICY.html
_UNLESS_SET = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OMP_WAIT_POLICY": "passive"}


class ContainmentError(RuntimeError):
    """The containment itself failed: a warm server that did not start or went away."""


class WarmServer:
    """A warm server process that has imported ``modules`` and ``plugins`` of pytest; forks contained children."""

    def __init__(
        self, modules: Sequence[str], environment: Mapping[str, str], log: Path, plugins: Sequence[str] = ()
    ) -> None:
        self.modules = tuple(modules)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = log
        variables = {name: value for name, value in environment.items() if name not in _OF_CHILDREN}
        with theirs, log.open("ab") as out:
            self._process = subprocess.Popen(
                python_command(_MAIN, str(theirs.fileno()), str(log.parent), *plugins, *modules),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**_UNLESS_SET, **variables},
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
                packages = dict.fromkeys(module.partition(".")[0] for module in self.modules)
                say(f"importing {', '.join(packages)} ({time.monotonic() - self._begun:.0f} s)")
                continue
            data = self._control.recv(MESSAGE_BYTES)
            if not data:
                _, how = how_it_ended(self._process.wait(), raw=False)
                names = ", ".join(self.modules) or "nothing"
                log = self._log.read_text(errors="replace")[-4000:]
                raise ContainmentError(f"the warm server died while importing {names} ({how}):\n{log}")
            self._ready = json.loads(data)["ready"]
        return self._ready

    def safe(self, say: Callable[[str], None]) -> bool:
        """Return whether forking from here is safe: one thread, no CUDA."""
        ready = self.ready(say)
        return ready["threads"] == 1 and not ready["cuda"]

    def gone(self) -> bool:
        """Return whether the server died after it had been ready: somebody killed it, another one will do."""
        return self._ready is not None and self._process.poll() is not None

    def fork(self, order: Order, log: Path, echo: bool) -> Child:
        """Start a contained child; its output goes to ``log`` and, if ``echo``, from there to standard output.

        Raises:
            ContainmentError: The server is gone.
        """
        ours, channel = socket.socketpair()
        status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with channel, their_status, log.open("ab") as out:
            try:
                handles = [channel.fileno(), their_status.fileno(), out.fileno()]
                socket.send_fds(self._control, [b"fork"], handles)
            except OSError as error:
                raise ContainmentError(f"the warm server is gone ({error})") from None
        # The supervisor's first word: without it the server ended before it forked.
        if wait([status], _SAY_EVERY) and not status.recv(1, socket.MSG_PEEK):
            status.close()
            ours.close()
            raise ContainmentError("the warm server ended before it forked")
        return Child(Connection(ours.detach()), status, log, order, echo)

    def close(self) -> None:
        """End the server; its children end with their own handles."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
