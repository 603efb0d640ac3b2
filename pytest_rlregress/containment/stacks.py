"""Python and native stacks of a process and all its descendants, for the report on a test that hangs.

py-spy reads them from outside, so that a process in C with the GIL held has a stack too. Of a process without Python,
such as a raylet, there is what it waits in.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pytest_rlregress.util.files import text_or_nothing

# `py-spy dump --native` of a process that has imported torch and vllm, on two cores: 1.2 s with the libraries' symbols
# not in the page cache, then 0.5 to 0.9 s and up to 365 MB (without --native 0.04 s and 8 MB). Hence native first, two
# processes at a time, and a quarter of 20 s for one process before its Python frames must do.
_AT_A_TIME = 2
_SHARE = 1 / 4
_PLAIN_SECONDS = 2.0  # for what needs no symbols
_LINES = 300  # of a process
_COMMAND = 160  # characters of a command line


@dataclass(frozen=True)
class _Process:
    pid: int
    name: str
    state: str  # as psutil says it, with the kernel function that it waits in
    age: float  # seconds since it started
    command: str
    python: bool


def stacks(pid: int, seconds: float = 20.0, reaper: int | None = None) -> str:
    """Stacks of ``pid``, then of its descendants, each process under a line that says what it is.

    Orphans among the descendants are found below ``reaper``, the process that takes them in. Takes ``seconds`` at the
    most and says what it left out for lack of time. Processes of one name with the same stacks, such as idle Ray
    workers, are shown once. Where a process cannot be read, the reason stands in place of its stack.
    """
    deadline = time.monotonic() + seconds
    family = _family(pid, reaper)
    if not family:
        return f"process {pid} is gone"
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        bodies = list(pool.map(lambda process: _body(process, deadline, seconds * _SHARE), family))
    alike: dict[tuple[str, str], list[_Process]] = {}
    for process, body in zip(family, bodies, strict=True):
        if body is not None:
            alike.setdefault((process.name, body), []).append(process)
    sections = [f"{_header(group, pid)}\n{body}".rstrip() for (_, body), group in alike.items()]
    left = [f"{process.name} {process.pid}" for process, body in zip(family, bodies, strict=True) if body is None]
    if left:
        sections.append(f"Not looked at, the {seconds:g} s for stacks were over: {', '.join(left)}")
    return "\n\n".join(sections)


def _family(pid: int, reaper: int | None) -> list[_Process]:
    """Return the process and its descendants: the test first, Python before others, idle Ray workers last of those."""
    try:
        root = psutil.Process(pid)
        every = [root, *(psutil.Process(reaper) if reaper else root).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    found = [process for process in map(_look, dict.fromkeys(every)) if process]
    return sorted(found, key=lambda each: (each.pid != pid, not each.python, each.name == "ray::IDLE"))


def _look(process: psutil.Process) -> _Process | None:
    try:
        with process.oneshot():
            age, name, status = time.time() - process.create_time(), process.name(), process.status()
    except psutil.Error:
        return None
    if status == psutil.STATUS_ZOMBIE:
        return _Process(process.pid, name, "zombie: it has ended and its parent has not collected it", age, "", False)
    try:
        command = " ".join(process.cmdline())
        python = "python" in Path(process.exe()).name or "libpython" in text_or_nothing(f"/proc/{process.pid}/maps")
    except psutil.Error:
        command, python = "", False
    waits = _waits(process.pid)
    return _Process(process.pid, name, f"{status} in {waits}" if waits else status, age, _shorten(command), python)


def _waits(pid: int) -> str:
    """Return the kernel function that a process waits in, or else the number of its system call."""
    channel = text_or_nothing(f"/proc/{pid}/wchan")
    call = text_or_nothing(f"/proc/{pid}/syscall").partition(" ")[0]
    return channel if channel != "0" else f"system call {call}" if call.isdecimal() else ""


def _shorten(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= _COMMAND else f"{line[: _COMMAND // 2]} … {line[-_COMMAND // 2 :]}"


def _header(group: list[_Process], test: int) -> str:
    first = group[0]
    pids = ", ".join(f"{process.pid}{' (the test)' if process.pid == test else ''}" for process in group)
    who = f"{len(group)} processes with the same stacks: {pids}" if len(group) > 1 else f"process {pids}"
    line = f"=== {who} {first.name}: {first.state}, started {first.age:.0f} s ago"
    return f"{line}: {first.command}" if first.command else line


def _body(process: _Process, deadline: float, share: float) -> str | None:
    """Return the stacks of one process as text; None when the time is over."""
    if process.state.startswith("zombie"):
        return ""
    if time.monotonic() >= deadline:
        return None
    return _python(process.pid, deadline, share) if process.python else "    no stack: not a Python process"


def _python(pid: int, deadline: float, share: float) -> str:
    """Stacks by py-spy: with native frames, else without, else without stopping the process."""
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        return "    no stack: py-spy is not installed (pip install py-spy)"
    problems: list[str] = []
    for flags, limit in (["--native"], share), ([], _PLAIN_SECONDS), (["--nonblocking"], _PLAIN_SECONDS):
        command = [spy, "dump", "--json", *flags, "--pid", str(pid)]
        output, problem = _ask(command, max(0, min(limit, deadline - time.monotonic())))
        if not problem:
            missing = f"    native frames are missing: {problems[0]}\n" if problems else ""
            return missing + _threads(json.loads(output))
        problems.append(problem)
    if not psutil.pid_exists(pid):
        return "    it ended meanwhile"
    return "    no stack: " + "; ".join(dict.fromkeys(problems))


def _ask(command: list[str], seconds: float) -> tuple[str, str]:
    """Run py-spy: return what it says, and its error; one of the two may be empty."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return "", f"py-spy took longer than {seconds:.1f} s to read the stacks"
    except OSError as error:
        return "", f"py-spy could not be started: {error}"
    if re.search(r"permission denied|not permitted", done.stderr, re.IGNORECASE):
        return done.stdout, _no_permission()
    if done.returncode:
        reason = done.stderr.partition("Stack backtrace")[0].removeprefix("Error: ")
        return done.stdout, f"py-spy: {' '.join(reason.split())[:300]}"
    return done.stdout, ""


@functools.cache
def _no_permission() -> str:
    scope = text_or_nothing("/proc/sys/kernel/yama/ptrace_scope")
    yama = f", or lower kernel.yama.ptrace_scope, which is {scope}, with sysctl to 0" if scope not in ("", "0") else ""
    return f"py-spy may not trace this process: give the container SYS_PTRACE (docker run --cap-add=SYS_PTRACE){yama}"


def _threads(dump: list[dict[str, Any]]) -> str:
    """Return the threads in py-spy's JSON, those that tell most first, of more than 300 lines the first."""
    lines = []
    for thread in sorted(dump, key=_rank):
        state = ("active" if thread["active"] else "idle") + (", holds the GIL" if thread["owns_gil"] else "")
        unnamed = "MainThread" if thread["os_thread_id"] == thread["pid"] else "without a name"
        lines.append(f"    thread {thread['thread_name'] or unnamed} ({state}):")
        runs = [(frame, len(list(run))) for frame, run in itertools.groupby(map(_frame, thread["frames"]))]
        lines += [f"        {frame}" + (f"  [{count} times]" if count > 1 else "") for frame, count in runs]
    if len(lines) > _LINES:
        lines[_LINES:] = [f"    … {len(lines) - _LINES} lines left out …"]
    return "\n".join(lines) or "    no thread runs Python code"


def _rank(thread: dict[str, Any]) -> int:
    """Rank a thread by how little it tells: the main one and the GIL's holder first, a library's that waits last."""
    if thread["os_thread_id"] == thread["pid"] or thread["owns_gil"]:
        return 0
    own = any(frame["module"] is None and _is_own(frame["filename"]) for frame in thread["frames"])
    return 1 if own else 2 if thread["active"] else 3


def _frame(frame: dict[str, Any]) -> str:
    name = "??" if frame["name"].startswith("0x") else frame["name"]  # addresses differ between like processes
    line = f":{frame['line']}" if frame["line"] else ""
    return f"{name} ({frame['short_filename'] or frame['filename']}{line})"


def _is_own(file: str) -> bool:
    """Return whether a file is neither the standard library's nor an installed package's."""
    return not re.search(r"(site|dist)-packages/|/lib/python\d|^<frozen", file)
