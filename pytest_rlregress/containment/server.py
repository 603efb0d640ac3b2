"""The warm server: imports the stack once, then forks a supervised child for every request.

Forking is safe only while one thread runs and CUDA was never initialised. Both are looked at after the imports and said
in the first message, so that pytest can turn to a server that imported nothing instead.

Between the server and a contained child stands the supervisor. On Linux it is a subreaper: whatever the child starts,
even in a session of its own or doubly forked, becomes the supervisor's child once its parent is gone. It reports how
the child ended, and ends with it, or when the pytest process does; no descendant is left alive then.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from pytest_rlregress.containment import END_SECONDS, MESSAGE_BYTES, REAP_SECONDS, leftovers, worker
from pytest_rlregress.containment.post_mortem import libraries
from pytest_rlregress.util.files import text_or_nothing
from pytest_rlregress.util.processes import become_subreaper, end_with_parent, go_on
from pytest_rlregress.util.shared_memory import SharedMemoryWatch

# A machine short of memory ends the child before pytest, which still has to tell of it.
_OOM_SCORE = "500"
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
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
    ready = json.dumps({"ready": _warm_up(modules)}).encode()
    with contextlib.suppress(BrokenPipeError):  # the pytest process may be gone by now, which the loop sees
        control.send(ready)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
        if not data:
            _end(supervisors, Path(folder))
        pid = os.fork()
        if pid == 0:
            control.close()
            os.setsid()
            _supervise(*descriptors)
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
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline and (left := [pid for pid in supervisors if psutil.pid_exists(pid)]):
        for pid in left:
            go_on(pid)  # one that a test has stopped would not end
        time.sleep(0.02)
    _kill_descendants()
    leftovers.sweep(folder.parent)  # another process of a killed run, such as xdist's controller, may have had one too
    os._exit(0)


def _supervise(channel: int, status_descriptor: int, log: int) -> None:
    """Fork a worker, wait for its end, kill what it leaves behind, tell its status; does not return.

    Sends JSON messages on the status socket: ``{"pid": …, "supervisor": …}`` at the start, ``{"fault": pid,
    "libraries": …}`` when the child or a fork of it is dying of a native fault, ``{"exit": waitpid status, "left":
    {pid: name}}`` at the end. A number on it is a signal for the child. End of file there means that pytest is gone or
    wants no more: then everything is killed.

    Args:
        channel: Descriptor of the worker's socket to the pytest process.
        status_descriptor: Of the supervisor's own, for sequenced packets.
        log: Descriptor of the child's log.
    """
    status = socket.socket(fileno=status_descriptor)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    become_subreaper()
    faults, faults_write = _fault_socket()
    shared_memory = SharedMemoryWatch()
    pid = os.fork()
    if pid == 0:
        end_with_parent(signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (wake_read, wake_write, status.fileno(), faults.fileno()):
            os.close(descriptor)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        worker.main(channel, log, faults_write.fileno())
    faults_write.close()
    status.send(json.dumps({"pid": pid, "supervisor": os.getpid()}).encode())
    sources: list[int | socket.socket] = [wake_read, status, faults, *shared_memory.sources()]
    faulting: int | None = 0
    ended = None
    while ended is None:
        ready, _, _ = select.select(sources, [], [])
        if status in ready:
            number = status.recv(16)
            if not number:  # the end of file
                break
            os.kill(pid, int(number))  # only here is it known that the process is not collected yet
        if set(shared_memory.sources()) & set(ready):
            shared_memory.look()
        if faults in ready and (faulting := _pass_on_fault(faults, faulting, status, log)) is None:
            sources.remove(faults)
        with contextlib.suppress(BlockingIOError):
            os.read(wake_read, 4096)
        ended = _reap(pid)
    while faulting is not None and select.select([faults], [], [], 0)[0]:
        faulting = _pass_on_fault(faults, faulting, status, log)
    left = _kill_descendants()
    shared_memory.remove()
    with contextlib.suppress(OSError):
        status.send(json.dumps({"exit": ended, "left": left}).encode())
    os._exit(0)


def _fault_socket() -> tuple[socket.socket, socket.socket]:
    """Make the socket for faulthandler: so small that a dying process waits until its memory map has been read."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the system's smallest: a stack takes many writes more
    if sys.platform == "linux":
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def _pass_on_fault(faults: socket.socket, faulting: int | None, status: socket.socket, log: int) -> int | None:
    """Write a piece of a dying process' stack to the log; if it is the first, tell which libraries it had mapped.

    Returns:
        The process that is dying; None when nobody is left who could.
    """
    data, ancillary, _, _ = faults.recvmsg(65536, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not data:
        return None
    sender: int = _CREDENTIALS.unpack(ancillary[0][2])[0] if ancillary else -1
    if sender != faulting:
        mapped = libraries(text_or_nothing(f"/proc/{sender}/maps"))
        with contextlib.suppress(OSError):
            status.send(json.dumps({"fault": sender, "libraries": mapped}).encode())
    with contextlib.suppress(OSError):  # a full disk must not keep the process from dying
        os.write(log, data)
    return sender


def _reap(wanted: int) -> int | None:
    """Collect every ended child; the status of the wanted one if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == wanted:
                found = status
    return found


def _kill_descendants() -> dict[int, str]:
    """Kill every descendant until none is left; those that were still running, by pid."""
    names: dict[int, str] = {}
    deadline = time.monotonic() + REAP_SECONDS
    while time.monotonic() < deadline:
        descendants = psutil.Process().children(recursive=True)
        if not descendants:
            break
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    names.setdefault(process.pid, process.name())
                    process.kill()
        _reap(0)
        time.sleep(0.005)
    return names
