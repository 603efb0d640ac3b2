"""The same faults through pytest-forked, pytest-isolated and pytest-isolate beside ours.

What happened is read from the junit file and the process table, never from what a tool prints. Each of the others has
an environment of its own, since they claim markers of ours or of each other.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import psutil
import uv

from benchmarks import fault_acts as acts

LIMIT = 5  # seconds for a test where the tool has such a limit; one of them counts its interpreter's start
BOUND = 15  # seconds for a suite; then pytest is asked to end, as `timeout` does
GRACE = 1  # seconds that other processes have after pytest ends
TRACE = "RLR_FAULT"  # in the environment of all that a suite starts, however it detaches itself
ISOLATED = "@pytest.mark.isolated"
OURS = "pytest-rlregress"
#: By tool: its options, and what contains a test when written above it.
TOOLS = {
    OURS: ((f"--rl-timeout={LIMIT}",), ISOLATED),
    "pytest-forked": (("--forked",), ""),
    "pytest-isolated": ((f"--isolated-timeout={LIMIT}",), ISOLATED),
    "pytest-isolate": (("--isolate", f"--isolate-timeout={LIMIT}"), ""),
}


class Fault(NamedTuple):
    """The test's body, its outcome in a true junit file, and words that tell why it failed."""

    label: str
    body: str
    outcome: str
    reason: str = ""


def _signal(number: signal.Signals) -> str:
    return rf"{number.name}|signal {number.value}\b|{signal.strsignal(number)}"


def _exit(code: int) -> str:
    return rf"(?i)(exit|status|code)\D{{0,9}}\b{code}\b"


HUNG = "(?i)time.?out|timed out|no end after"
STAYS = "(?i)left|leak|surviv"  # a test that leaves a process behind may pass, or fail for just that
FAULTS = (
    Fault("SIGFPE", "acts.divides()", "failed", _signal(signal.SIGFPE)),
    Fault("SIGSEGV", "acts.dereferences()", "failed", _signal(signal.SIGSEGV)),
    Fault("double free", "acts.frees_twice()", "failed", _signal(signal.SIGABRT)),
    Fault("SIGKILL from outside", "acts.is_killed()", "failed", _signal(signal.SIGKILL)),
    Fault("os._exit(0)", "acts.leaves(0)", "failed", _exit(0)),
    Fault("os._exit(3)", "acts.leaves(3)", "failed", _exit(3)),
    Fault("hang in Python", "acts.sleeps()", "failed", HUNG),
    Fault("hang in C, GIL held", "acts.sleeps_in_c()", "failed", HUNG),
    Fault("grandchild stays", "acts.starts_grandchild()", "passed", STAYS),
    Fault("grandchild and SIGSEGV", "acts.starts_grandchild(); acts.dereferences()", "failed", _signal(signal.SIGSEGV)),
    Fault("double-forked daemon", "acts.starts_daemon()", "passed", STAYS),
    Fault("unpicklable exception", "acts.raises_locked()", "failed", "Locked"),
    Fault("__str__ raises", "acts.raises_wordless()", "failed", "Wordless"),
    Fault("skip", "pytest.skip('not here')", "skipped"),
    Fault("xfail", "pytest.xfail('not yet')", "xfailed"),
    Fault("20 MB of output", "acts.prints()", "passed"),
    Fault("test returns twice", "acts.forks()", "passed"),
)
LEGEND = f"""\
test    named   failed, and the junit file tells the signal, exit code, time limit or exception
        blamed  failed without that          kept  ended as it should
        lost    not in the junit file        else  what it was wrongly taken for
suite   ran     both neighbours passed       broken  one did not
        hung    stopped from outside after {BOUND} s
left    processes found {GRACE} s after pytest ended"""


def main() -> None:
    """Put every fault through every tool that works here and print what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        ready = {}
        for tool in TOOLS:
            python = _make_environment(tool, Path(folder, tool))
            if python and _run(tool, python, {"test_it": "pass"})[0] == {"test_it": [("passed", "")]}:
                ready[tool] = python
            else:
                print(f"\n{tool} is left out: a test that does nothing does not pass")
        print(f"\nOne test with the fault between two without, {LIMIT} s each where the tool has a limit:\n")
        print(_row("", *(tool.removeprefix("pytest-") for tool in ready)))
        print(_row("fault", *["test   suite  left"] * len(ready)))
        right = dict.fromkeys(ready, 0)
        for fault in FAULTS:
            cells = []
            for tool, python in ready.items():
                test, suite, left = _try(fault, tool, python)
                cells.append(f"{test:7}{suite:7}{left:4}")
                right[tool] += test in ("named", "kept") and suite == "ran" and left == 0
            print(_row(fault.label, *cells), flush=True)
    print(f"\n{LEGEND}\n\n{'':20}named or kept, ran, none left")
    for tool, count in right.items():
        print(f"  {tool:18}{count:8} of {len(FAULTS)}")


def _row(label: str, *cells: str) -> str:
    return (label.ljust(23) + "".join(cell.ljust(19) for cell in cells)).rstrip()


def _make_environment(tool: str, folder: Path) -> str:
    """Return the interpreter that has a tool: for ours this one, for another a new one's; "" where uv has none."""
    if tool == OURS:
        return sys.executable
    command = [uv.find_uv_bin(), "--quiet"]
    subprocess.run([*command, "venv", "--python", sys.executable, folder], check=True)
    python = str(folder / "bin" / "python")
    # Without bytecode every interpreter that starts would compile pytest again.
    install = ["pip", "install", "--compile-bytecode", "--python", python, tool, "pytest<9"]  # pytest-forked takes 8
    return python if subprocess.run([*command, *install]).returncode == 0 else ""


def _try(fault: Fault, tool: str, python: str) -> tuple[str, str, int]:
    """Run a fault's test: return its outcome, its neighbours', and how many processes stayed."""
    bodies = {"test_before": "pass", "test_fault": fault.body, "test_after": "pass"}
    entries, in_time, left = _run(tool, python, bodies)
    passed = all(entries.get(name) == [("passed", "")] for name in ("test_before", "test_after"))
    return _judge(fault, entries.get("test_fault", [])), "hung" if not in_time else "ran" if passed else "broken", left


def _judge(fault: Fault, entries: list[tuple[str, str]]) -> str:
    if not entries:
        return "lost"
    failures = [text for outcome, text in entries if outcome == "failed"]
    if failures:  # a call and a teardown that both fail are two entries
        if fault.reason and re.search(fault.reason, "\n".join(failures)):
            return "named"
        return "blamed" if fault.outcome == "failed" else "failed"
    if len(entries) > 1:
        return "twice"
    return "kept" if entries[0][0] == fault.outcome else entries[0][0]


def _run(tool: str, python: str, bodies: dict[str, str]) -> tuple[dict[str, list[tuple[str, str]]], bool, int]:
    """Run tests with these names and bodies; none of their processes is there afterwards.

    Returns:
        Outcome and text of every entry of a test in the junit file; whether pytest ended by itself; how many processes
        went on after it.
    """
    options, mark = TOOLS[tool]
    trace = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLREGRESS_"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: with bytecode
    with tempfile.TemporaryDirectory() as folder:
        tests = (f"{mark}\ndef {name}():\n    {body}\n" for name, body in bodies.items())
        Path(folder, "test_it.py").write_text("\n".join(["import acts, pytest", *tests]))
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        shutil.copy(acts.__file__, Path(folder, "acts.py"))
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=junit.xml", *options, "test_it.py"]
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=folder, env={**environment, TRACE: trace}, stdout=null, stderr=null)
        try:
            in_time = _ends(process, BOUND)
            if not in_time:
                process.terminate()
                if not _ends(process, BOUND / 4):
                    process.kill()
                    process.wait()
            until = time.monotonic() + GRACE
            while (left := _find_traced(trace)) and time.monotonic() < until:
                time.sleep(0.05)
            return _read_entries(Path(folder, "junit.xml")), in_time, len(left)
        finally:
            while still := _find_traced(trace):
                for other in still:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        other.kill()
                psutil.wait_procs(still, timeout=1)


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _find_traced(trace: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or another user's
            if process.environ().get(TRACE) == trace:
                found.append(process)
    return found


def _read_entries(junit: Path) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    with contextlib.suppress(FileNotFoundError, ET.ParseError):
        for case in list(ET.parse(junit).iter("testcase")):
            outcome, text = "passed", ""
            for child in case:
                if child.tag in ("failure", "error"):
                    outcome, text = "failed", f"{text}\n{child.get('message')}\n{child.text}"
                elif child.tag == "skipped":
                    outcome = "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
            found.setdefault(case.get("name", ""), []).append((outcome, text))
    return found
