"""What a contained test costs: forked from the warm server, against the same test in a spawned interpreter."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = 5
CONTAINED = f"""
import pytest

@pytest.mark.isolated
@pytest.mark.parametrize("number", range({TESTS}))
def test_bare(number):
    pass

@pytest.mark.isolated
@pytest.mark.needs("torch", "vllm")
@pytest.mark.parametrize("number", range({TESTS}))
def test_stack(number):
    {{body}}
"""
# What a test of the engine needs before it can begin, and a computation that shows that it works.
BODY = "import torch, vllm.entrypoints.llm; assert torch.ones(4, 4).mm(torch.ones(4, 4)).sum() == 64"


# Prints what each test took as a whole, the start of its process included.
CLOCK = """
import time

BEGUN = {}

def pytest_runtest_logstart(nodeid, location):
    BEGUN[nodeid] = time.perf_counter()

def pytest_runtest_logfinish(nodeid, location):
    print(f"\\nTOOK {nodeid.partition('::')[2]} {time.perf_counter() - BEGUN[nodeid]:.3f}")
"""


def main() -> None:
    """Time both in one run and print the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_it.py").write_text(CONTAINED.format(body=BODY))
        Path(folder, "conftest.py").write_text(CLOCK)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        printed = _pytest(folder, "test_it.py")
        took: dict[str, list[float]] = {"test_bare": [], "test_stack": []}
        for name, seconds in re.findall(r"TOOK (\w+)\[\d\] ([\d.]+)", printed):
            took[name].append(float(seconds))
        spawned = []
        for _ in range(3):  # the bare interpreter: what any way of spawning one pays at least
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", BODY], check=True, capture_output=True)
            spawned.append(time.perf_counter() - begun)
    # The first of each kind waits for its server to be ready.
    bare, stack = statistics.median(took["test_bare"][1:]), statistics.median(took["test_stack"][1:])
    print("\nA contained test, its process included, median:")
    print(f"  that needs no stack               {bare:7.3f} s     (wanted: under 0.5)")
    print(f"  that needs torch and vLLM, warm   {stack:7.3f} s")
    print(f"  the same, interpreter spawned     {statistics.median(spawned):7.3f} s")
    print(f"  spawned / warm                    {statistics.median(spawned) / stack:7.1f}       (wanted: at least 4)")


def _pytest(folder: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
