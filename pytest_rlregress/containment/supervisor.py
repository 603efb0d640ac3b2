"""Between the warm server and a contained child: reports how the child ended and leaves no descendant alive.

On Linux the supervisor is a subreaper: whatever the child starts, even in a session of its own or doubly forked,
becomes the supervisor's child once its parent is gone. It ends with the child, or when the pytest process does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from pytest_rlregress.containment.leftovers import SharedMemoryWatch
from pytest_rlregress.containment.post_mortem import libraries
from pytest_rlregress.util.files import text_or_nothing
from pytest_rlregress.util.processes import become_subreaper, end_with_parent

_REAP_SECONDS = 10.0
# A machine short of memory ends the child before pytest, which still has to tell of it.
_OOM_SCORE = "500"
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


def supervise(status: socket.socket, log: int, run: Callable[[int], None]) -> None:
    """Fork ``run`` into a child, wait for its end, kill what it leaves behind, tell ``status``; does not return.

    Sends JSON messages on ``status``: ``{"pid": …, "supervisor": …}`` at the start, ``{"fault": pid, "libraries": …}``
    when the child or a fork of it is dying of a native fault, ``{"exit": waitpid status, "left": {pid: name}}`` at the
    end. A number on ``status`` is a signal for the child. End of file there means that pytest is gone or wants no more:
    then everything is killed.

    Args:
        status: Sequenced-packet socket to the pytest process.
        log: Descriptor of the child's log.
        run: Takes the descriptor that faulthandler is to write to; ends with ``os._exit``.
    """
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
        run(faults_write.fileno())
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
    left = kill_descendants()
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


def kill_descendants() -> dict[int, str]:
    """Kill every descendant until none is left; those that were still running, by pid."""
    names: dict[int, str] = {}
    deadline = time.monotonic() + _REAP_SECONDS
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
