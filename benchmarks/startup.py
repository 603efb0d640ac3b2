"""pytest's start-up with the plugin loaded and unused, against the same without it; other plugins stay out of both.

Both alternate in one process, the plugin's modules imported again each time: between processes start-up differs by more
than the plugin costs. Without it an empty plugin is loaded, since `-p` itself looks through all installed packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 40
SCRIPT = f"""
import contextlib, io, statistics, sys, time, pytest

def seconds(plugin):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pytest_rlregress", "empty", "test_it")]:
        del sys.modules[name]
    begun = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        assert pytest.main(["-q", "-p", "no:cacheprovider", "-p", plugin]) == 0
    return time.perf_counter() - begun

pairs = [(seconds("pytest_rlregress.plugin"), seconds("empty")) for _ in range({RUNS} + 3)][3:]
print(statistics.median(without for _, without in pairs), statistics.median(one - other for one, other in pairs))
"""


def main() -> None:
    """Print the median difference."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: with bytecode
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_it.py").write_text("def test_it(): pass\n")
        Path(folder, "empty.py").touch()
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    without, difference = map(float, done.stdout.split()[-2:])
    print(f"\npytest on one empty test, median of {RUNS}, alternating in one process:")
    print(f"  without the plugin  {1000 * without:7.1f} ms")
    print(f"  with it, unused     {1000 * difference:+7.1f} ms     (wanted: at most +10)")
