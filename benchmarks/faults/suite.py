"""Run a small suite through one tool, bounded, and read afterwards what became of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.faults import acts

BOUND = 15  # seconds for a suite; then pytest is asked to end, as `timeout` does
GRACE = 1  # seconds that other processes may go on after pytest
TRACE = "RLR_FAULT"  # in the environment of all that a suite starts, however it detaches itself
# When each test is done, of the suite's own pytest: its children may load this file too.
CLOCK = """
import os, time

def pytest_runtest_logreport(report):
    if report.when == "teardown":
        with open(f"done.{os.getpid()}", "a") as file:
            print(time.perf_counter(), file=file)
"""


@dataclass(frozen=True)
class Tool:
    """A distribution, its options, and what contains a test when written above it."""

    name: str
    options: tuple[str, ...]
    mark: str = ""


@dataclass(frozen=True)
class Ran:
    """What a suite leaves.

    Args:
        in_time: Whether pytest ended by itself.
        left: How many processes went on after it.
        entries: Outcome and text of every entry of a test in the junit file; empty if that is not valid.
        done: When each test was done, in seconds.
    """

    in_time: bool
    left: int
    entries: dict[str, list[tuple[str, str]]]
    done: list[float]

    def passed(self, *names: str) -> bool:
        """Return whether each of these tests has one entry, and that says passed."""
        return all([outcome for outcome, _ in self.entries.get(name, ())] == ["passed"] for name in names)


def run(tool: Tool, python: str, bodies: dict[str, str]) -> Ran:
    """Run tests with these names and bodies; none of their processes is there afterwards."""
    tests = (f"{tool.mark}\ndef {name}():\n    {body}\n" for name, body in bodies.items())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_it.py").write_text("\n".join(["import acts, pytest", *tests]))
        Path(folder, "conftest.py").write_text(CLOCK)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        shutil.copy(acts.__file__, folder)
        pid, in_time, left = _pytest(folder, python, *tool.options)
        clock = Path(folder, f"done.{pid}")
        done = [float(moment) for moment in clock.read_text().split()] if clock.exists() else []
        return Ran(in_time, left, _entries(Path(folder, "junit.xml")), done)


def _pytest(folder: str, python: str, *options: str) -> tuple[int, bool, int]:
    trace = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RLREGRESS_"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: with bytecode
    environment[TRACE] = trace
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=junit.xml", *options, "test_it.py"]
    null = subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=null, stderr=null)
        in_time = _ends(process, BOUND)
        if not in_time:
            process.terminate()
            if not _ends(process, BOUND / 4):
                process.kill()
                process.wait()
        until = time.monotonic() + GRACE
        while (left := _traced(trace)) and time.monotonic() < until:
            time.sleep(0.05)
        return process.pid, in_time, len(left)
    finally:
        while left := _traced(trace):
            for other in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    other.kill()
            psutil.wait_procs(left, timeout=1)


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _traced(trace: str) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # gone, or another user's
            process = psutil.Process(pid)
            if process.environ().get(TRACE) == trace:
                found.append(process)
    return found


def _entries(junit: Path) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    try:
        cases = list(ET.parse(junit).iter("testcase"))
    except (FileNotFoundError, ET.ParseError):
        return found
    for case in cases:
        outcome, text = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome, text = "failed", f"{text}\n{child.get('message')}\n{child.text}"
            elif child.tag == "skipped":
                outcome = "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
        found.setdefault(case.get("name", ""), []).append((outcome, text))
    return found
