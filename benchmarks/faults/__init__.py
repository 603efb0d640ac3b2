"""The same faults through pytest-forked, pytest-isolated and pytest-isolate beside ours, and what a bare test costs.

What happened is read from the junit file and the process table, never from what a tool prints. Each of the others has
an environment of its own, since they claim markers of ours or of each other.
"""

from __future__ import annotations

import itertools
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import uv

from benchmarks.faults import acts
from benchmarks.faults.suite import BOUND, GRACE, Tool, run

LIMIT = 5  # seconds for a test where the tool has such a limit; one of them counts its interpreter's start
BARE = 10  # tests whose median is the cost
PYTESTS = 3  # minor versions of pytest to try a tool with
OURS = Tool("pytest-rlregress", (f"--rl-timeout={LIMIT}",), "@pytest.mark.isolated")
OTHERS = (
    Tool("pytest-forked", ("--forked",)),
    Tool("pytest-isolated", (f"--isolated-timeout={LIMIT}",), "@pytest.mark.isolated"),
    Tool("pytest-isolate", ("--isolate", f"--isolate-timeout={LIMIT}")),
)


@dataclass(frozen=True)
class Fault:
    """What the test does, its outcome in a true junit file, and words that tell why it failed."""

    label: str
    act: Callable[[], object]
    outcome: str
    reason: str = ""


def _signal(number: signal.Signals) -> str:
    return rf"{number.name}|signal {number.value}\b|{signal.strsignal(number)}"


def _exit(code: int) -> str:
    return rf"(?i)(exit|status|code)\D{{0,9}}\b{code}\b"


HUNG = "(?i)time.?out|timed out|no end after"
STAYS = "(?i)left|leak|surviv"  # a test that leaves a process behind may pass, or fail for just that
FAULTS = (
    Fault("SIGFPE", acts.divides, "failed", _signal(signal.SIGFPE)),
    Fault("SIGSEGV", acts.dereferences, "failed", _signal(signal.SIGSEGV)),
    Fault("double free", acts.frees_twice, "failed", _signal(signal.SIGABRT)),
    Fault("SIGKILL from outside", acts.is_killed, "failed", _signal(signal.SIGKILL)),
    Fault("os._exit(0)", acts.leaves_with_0, "failed", _exit(0)),
    Fault("os._exit(3)", acts.leaves_with_3, "failed", _exit(3)),
    Fault("hang in Python", acts.sleeps, "failed", HUNG),
    Fault("hang in C, GIL held", acts.sleeps_in_c, "failed", HUNG),
    Fault("grandchild stays", acts.starts_grandchild, "passed", STAYS),
    Fault("grandchild and SIGSEGV", acts.starts_grandchild_and_dereferences, "failed", _signal(signal.SIGSEGV)),
    Fault("double-forked daemon", acts.starts_daemon, "passed", STAYS),
    Fault("unpicklable exception", acts.raises_locked, "failed", "Locked"),
    Fault("__str__ raises", acts.raises_wordless, "failed", "Wordless"),
    Fault("skip", acts.skips, "skipped"),
    Fault("xfail", acts.xfails, "xfailed"),
    Fault("20 MB of output", acts.prints, "passed"),
    Fault("test returns twice", acts.forks, "passed"),
)
LEGEND = f"""\
test    named   failed, and the junit file tells the signal, exit code, time limit or exception
        blamed  failed without that          kept  ended as it should
        lost    not in the junit file        else  what it was wrongly taken for
suite   ran     both neighbours passed       broken  one did not
        hung    stopped from outside after {BOUND} s
left    processes found {GRACE} s after pytest ended"""


@dataclass(frozen=True)
class Ready:
    """A tool in its environment, and the seconds it takes for a test that does nothing."""

    tool: Tool
    python: str
    version: str
    pytest: str
    cost: float


class Unusable(Exception):
    """A tool cannot be compared here; says why."""


def main() -> None:
    """Put every fault through every tool that works here and print what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        ready = []
        for tool in (OURS, *OTHERS):
            try:
                ready.append(_prepared(tool, Path(folder, tool.name)))
            except Unusable as error:
                print(f"\n{tool.name} is left out: {error}")
        print(f"\nOne test with the fault between two without, {LIMIT} s each where the tool has a limit:\n")
        print(_row("", *(f"{one.tool.name.removeprefix('pytest-')} {one.version}" for one in ready)))
        print(_row("fault", *["test   suite  left"] * len(ready)))
        right = dict.fromkeys(ready, 0)
        with ThreadPoolExecutor(max_workers=2) as pool:
            for fault in FAULTS:
                cells = []
                for one, (test, suite, left) in zip(ready, pool.map(partial(_try, fault), ready), strict=True):
                    cells.append(f"{test:7}{suite:7}{left:4}")
                    right[one] += test in ("named", "kept") and suite == "ran" and left == 0
                print(_row(fault.label, *cells), flush=True)
    print(f"\n{LEGEND}\n\n{'':20}named or kept, ran,     a contained test that")
    print(f"{'':20}none left               does nothing, median")
    for one in ready:
        print(f"  {one.tool.name:18}{right[one]:8} of {len(FAULTS)}{one.cost:19.3f} s     under pytest {one.pytest}")


def _row(label: str, *cells: str) -> str:
    return (label.ljust(23) + "".join(cell.ljust(19) for cell in cells)).rstrip()


def _prepared(tool: Tool, folder: Path) -> Ready:
    """Time bare tests in the first environment in which they pass; the first waits for what serves them all."""
    names = [f"test_{number}" for number in range(BARE + 1)]
    tried = []
    for python in _environments(tool, folder):
        version, of_pytest = _versions(python, tool.name)
        ran = run(tool, python, dict.fromkeys(names, "pass"))
        if ran.passed(*names):
            cost = statistics.median(later - earlier for earlier, later in itertools.pairwise(ran.done))
            return Ready(tool, python, version, of_pytest, cost)
        tried.append(of_pytest)
    raise Unusable(f"tests that do nothing do not pass, under pytest {', '.join(tried)}")


def _environments(tool: Tool, folder: Path) -> Iterator[str]:
    """Ours as it is; for another a new one with the pytest that runs here, then with older minor versions."""
    if tool is OURS:
        yield sys.executable
        return
    python = str(folder / "bin" / "python")
    _uv("venv", "--python", sys.executable, str(folder))
    wanted = f"pytest<={pytest.__version__}"
    for _ in range(PYTESTS):
        # Without bytecode every interpreter that starts would compile pytest again.
        _uv("pip", "install", "--compile-bytecode", "--python", python, tool.name, wanted)
        yield python
        wanted = f"pytest<{_versions(python, 'pytest')[1].rpartition('.')[0]}"


def _uv(*arguments: str) -> None:
    done = subprocess.run([uv.find_uv_bin(), "--quiet", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise Unusable(f"uv could not install it. {' '.join(done.stderr.split())}")


def _versions(python: str, tool: str) -> list[str]:
    code = f"from importlib.metadata import version; print(version({tool!r}), version('pytest'))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def _try(fault: Fault, one: Ready) -> tuple[str, str, int]:
    """Run a fault's test: return its outcome, its neighbours', and how many processes stayed."""
    bodies = {"test_before": "pass", "test_fault": f"acts.{fault.act.__name__}()", "test_after": "pass"}
    ran = run(one.tool, one.python, bodies)
    suite = "hung" if not ran.in_time else "ran" if ran.passed("test_before", "test_after") else "broken"
    return _judged(fault, ran.entries.get("test_fault", [])), suite, ran.left


def _judged(fault: Fault, entries: list[tuple[str, str]]) -> str:
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
