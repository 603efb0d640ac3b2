"""Python and native stacks of a process and all its descendants, for the report on a test that hangs.

py-spy reads them from outside, so that a process in C with the GIL held has a stack too. Of a process without Python,
such as a raylet, there is what it waits in.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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


def stacks(pid: int, seconds: float = 20.0, reaper: int | None = None) -> str:
    """Return the stacks of ``pid``, then of its descendants, each process under a line that says what it is.

    Orphans among the descendants are found below ``reaper``, the process that takes them in. Takes ``seconds`` at the
    most and says what it left out for lack of time. Processes with the same stacks, such as idle Ray workers, are shown
    once. Where a process cannot be read, the reason stands in place of its stack.
    """
    deadline = time.monotonic() + seconds
    try:
        root = psutil.Process(pid)
        family = dict.fromkeys([root, *(psutil.Process(reaper) if reaper else root).children(recursive=True)])
    except psutil.NoSuchProcess:
        return f"process {pid} is gone"
    found = [(process, described) for process in family if (described := _describe(process))]
    # The test first, Python before others, idle Ray workers last of those.
    found.sort(key=lambda pair: (pair[0].pid != pid, not pair[1][2], "ray::IDLE" in pair[1][0]))

    def read(pair: tuple[psutil.Process, tuple[str, str, bool]]) -> str | None:
        process, (_, about, python) = pair
        if "zombie" in about:
            return ""
        if time.monotonic() >= deadline:
            return None
        return _read(process.pid, deadline, seconds * _SHARE) if python else "    no stack: not a Python process"

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        bodies = list(pool.map(read, found))
    alike: dict[tuple[str, str], list[tuple[int, str]]] = {}
    left = []
    for (process, (name, about, _)), body in zip(found, bodies, strict=True):
        if body is None:
            left.append(f"{name} {process.pid}")
        else:
            alike.setdefault((name, body), []).append((process.pid, about))
    sections = []
    for (name, body), processes in alike.items():
        pids = ", ".join(f"{one}{' (the test)' if one == pid else ''}" for one, _ in processes)
        who = f"{len(processes)} processes with the same stacks: {pids}" if len(processes) > 1 else f"process {pids}"
        sections.append(f"=== {who} {name}: {processes[0][1]}\n{body}".rstrip())
    if left:
        sections.append(f"Not looked at, the {seconds:g} s for stacks were over: {', '.join(left)}")
    return "\n\n".join(sections)


def _describe(process: psutil.Process) -> tuple[str, str, bool] | None:
    """Return a process' name, what it does in a line, and whether it runs Python; None for one that is gone."""
    try:
        with process.oneshot():
            age, name, status = time.time() - process.create_time(), process.name(), str(process.status())
    except psutil.Error:
        return None
    if status == psutil.STATUS_ZOMBIE:
        status = "zombie: it has ended and its parent has not collected it"
    waits = text_or_nothing(f"/proc/{process.pid}/wchan")  # the kernel function that it waits in
    about = f"{status}{f' in {waits}' if waits not in ('', '0') else ''}, started {age:.0f} s ago"
    try:
        command = " ".join(" ".join(process.cmdline()).split())
        python = "python" in Path(process.exe()).name or "libpython" in text_or_nothing(f"/proc/{process.pid}/maps")
    except psutil.Error:
        return name, about, False
    if len(command) > _COMMAND:
        command = f"{command[: _COMMAND // 2]} … {command[-_COMMAND // 2 :]}"
    return name, f"{about}: {command}" if command else about, python


def _read(pid: int, deadline: float, share: float) -> str:
    """Return the stacks that py-spy reads: with native frames, else without, else without stopping the process."""
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
        scope = text_or_nothing("/proc/sys/kernel/yama/ptrace_scope") or "0"
        yama = f", or lower kernel.yama.ptrace_scope, which is {scope}, with sysctl to 0" if scope != "0" else ""
        give = f"give the container SYS_PTRACE (docker run --cap-add=SYS_PTRACE){yama}"
        return done.stdout, f"py-spy may not trace this process: {give}"
    if done.returncode:
        reason = done.stderr.partition("Stack backtrace")[0].removeprefix("Error: ")
        return done.stdout, f"py-spy: {' '.join(reason.split())[:300]}"
    return done.stdout, ""


def _threads(dump: list[dict[str, Any]]) -> str:
    """Return the threads in py-spy's JSON, the main one and the GIL's holder first, cut after 300 lines."""
    lines = []
    for thread in sorted(dump, key=lambda one: one["os_thread_id"] != one["pid"] and not one["owns_gil"]):
        state = ("active" if thread["active"] else "idle") + (", holds the GIL" if thread["owns_gil"] else "")
        unnamed = "MainThread" if thread["os_thread_id"] == thread["pid"] else "without a name"
        lines.append(f"    thread {thread['thread_name'] or unnamed} ({state}):")
        for frame in thread["frames"]:
            name = "??" if frame["name"].startswith("0x") else frame["name"]  # addresses differ between like processes
            line = f":{frame['line']}" if frame["line"] else ""
            lines.append(f"        {name} ({frame['short_filename'] or frame['filename']}{line})")
    if len(lines) > _LINES:
        lines[_LINES:] = [f"    … {len(lines) - _LINES} lines left out …"]
    return "\n".join(lines) or "    no thread runs Python code"
