"""Start-up with the plugin installed: nothing heavy is imported before a test asks for it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "vllm", "ray", "transformers", "numpy", "tensordict", "verl", "trl", "pynvml", "psutil")
PROBE = """
import sys, pytest
class Look:
    def pytest_sessionfinish(self):
        print("IMPORTED", sorted(name for name in {heavy!r} if name in sys.modules))
sys.exit(pytest.main({args!r}, plugins=[Look()]))
"""


def imported(pytester, *args):
    code = PROBE.format(heavy=HEAVY, args=["-s", "-p", "no:hypothesispytest", *args])
    done = subprocess.run([sys.executable, "-c", code], cwd=pytester.path, capture_output=True, text=True)
    line = next(line for line in done.stdout.splitlines() if "IMPORTED" in line)
    return eval(line.partition("IMPORTED")[2])


def test_unused_plugin_imports_nothing_heavy(pytester):
    pytester.makepyfile("def test_it(): pass")
    assert imported(pytester) == []


def test_collecting_the_scenarios_imports_no_stack(pytester):
    found = imported(pytester, "--hw=cpu", "--collect-only", "-q")
    assert set(found) <= {"pynvml", "psutil"}


def test_contained_test_brings_no_stack_into_pytest(pytester):
    pytester.makepyfile(
        "import pytest\n@pytest.mark.needs('torch')\ndef test_it():\n    import sys\n    assert 'torch' in sys.modules"
    )
    assert set(imported(pytester)) <= {"pynvml", "psutil"}


def test_probe_sees_what_a_test_imports(pytester):
    pytester.makepyfile("def test_it(): import numpy")
    assert imported(pytester) == ["numpy"]
