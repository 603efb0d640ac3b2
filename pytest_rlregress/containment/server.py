"""The warm server: imports the stack once, then forks a supervised child for every request.

Forking is safe only while one thread runs and CUDA was never initialised. Both are looked at after the imports and said
in the first message, so that pytest can turn to a server that imported nothing instead.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from pytest_rlregress.containment import leftovers, supervisor, worker
from pytest_rlregress.containment.messages import MESSAGE_BYTES
from pytest_rlregress.failures import catalogue
from pytest_rlregress.util.processes import become_subreaper

_END_SECONDS = 15.0
# What starts threads or processes when it is imported: a process with a second thread cannot be forked safely.
_WHILE_IMPORTING = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy: a thread per core
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's allocator
    "HUMMING_DISABLE_PARALLEL_BUILD": "1",  # vLLM's CUDA wheel: two processes
}


def main(descriptor: int, folder: str, modules: Sequence[str]) -> None:
    """Serve fork requests on the sequenced-packet socket ``descriptor`` until its other end closes.

    When it was the pytest process' death that closed it, and the children are dead too, removes the session's
    temporary ``folder``, and any other beside it that a dead session left.

    Sends ``{"ready": …}`` once, with the seconds and the outcome of each import. A request carries three descriptors:
    the child's channel, its status socket and its log.
    """
    control = socket.socket(fileno=descriptor)
    supervisors: list[int] = []
    become_subreaper()  # of what a supervisor leaves that is killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Loading the catalogue is most of what a child without a stack would cost.
    with contextlib.suppress(catalogue.CatalogueError):  # the pytest process meets the same, and reports it
        catalogue.load([catalogue.SHIPPED])
    control.send(json.dumps({"ready": _warm_up(modules)}).encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
        if not data:
            _end(supervisors, Path(folder))
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_supervisor(*descriptors)
        supervisors.append(pid)
        for handle in descriptors:
            os.close(handle)


def _warm_up(modules: Sequence[str]) -> dict[str, object]:
    """Import ``modules`` one after the other; what each cost, what failed, and whether forking is safe now."""
    own = {name: value for name, value in _WHILE_IMPORTING.items() if name not in os.environ}
    os.environ.update(own)
    seconds, failed = {}, {}
    for name in modules:
        begun = time.monotonic()
        try:
            importlib.import_module(name)
        except BaseException as error:  # the test that needs the module meets the same error, and reports it
            failed[name] = f"{type(error).__name__}: {error}"[:500]
        seconds[name] = round(time.monotonic() - begun, 2)
    for name in own:
        del os.environ[name]
    # Else a child's first garbage collection touches, and so copies, every page of the imported stack.
    gc.collect()
    gc.freeze()
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return {
        "seconds": seconds,
        "failed": failed,
        "threads": len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1,
        "cuda": bool(cuda and cuda.is_initialized()),
    }


def _end(supervisors: list[int], folder: Path) -> None:
    """Wait for the supervisors, who end with what they supervise; kill what one that was killed has left; exit."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline and any(map(psutil.pid_exists, supervisors)):
        time.sleep(0.02)
    supervisor.kill_descendants()
    leftovers.sweep(folder.parent)  # another process of a killed run, such as xdist's controller, may have had one too
    os._exit(0)


def _become_supervisor(channel: int, status: int, log: int) -> None:
    os.setsid()

    def run(faults: int) -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        worker.main(channel, log, faults)

    supervisor.supervise(socket.socket(fileno=status), log, run)
