"""Between the warm server and a contained child: reports how the child ended and leaves no descendant alive.

On Linux the supervisor is a subreaper: whatever the child starts, even in a session of its own or doubly forked,
becomes the supervisor's child once its parent is gone. It ends with the child, or when the pytest process does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_REAP_SECONDS = 10.0


def supervise(status: socket.socket, run: Callable[[], None]) -> None:
    """Fork ``run`` into a child, wait for its end, kill what it leaves behind, tell ``status``; does not return.

    Sends JSON messages on ``status``: ``{"pid": …}`` at the start, ``{"exit": waitpid status, "left": [names]}`` at the
    end. End of file on ``status`` means that pytest is gone or wants no more: then everything is killed.
    """
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (wake_read, wake_write, status.fileno()):
            os.close(descriptor)
        run()  # ends with os._exit
    status.send(json.dumps({"pid": pid}).encode())
    ended = None
    while ended is None:
        ready, _, _ = select.select([wake_read, status.fileno()], [], [])
        if status.fileno() in ready:  # pytest never writes here: this is the end of file
            break
        with contextlib.suppress(BlockingIOError):
            os.read(wake_read, 4096)
        ended = _reap(pid)
    left = _kill_all()
    with contextlib.suppress(OSError):
        status.send(json.dumps({"exit": ended, "left": left}).encode())
    os._exit(0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


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


def _kill_all() -> list[str]:
    """Kill every descendant until none is left; the names of those that were still running."""
    import psutil

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
    return sorted(names.values())
