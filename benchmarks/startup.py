"""pytest's start-up with the plugin installed and unused, against the same without it."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 20


def main() -> None:
    """Alternate the two and print the median difference."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_it.py").write_text("def test_it(): pass\n")
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        pairs = [(_seconds(folder), _seconds(folder, "-p", "no:rlregress")) for _ in range(RUNS + 1)][1:]
    difference = statistics.median(with_plugin - without for with_plugin, without in pairs)
    print(f"\npytest on one empty test, median of {RUNS}, alternating:")
    print(f"  without the plugin  {1000 * statistics.median(without for _, without in pairs):7.1f} ms")
    print(f"  with it, unused     {1000 * difference:+7.1f} ms     (wanted: at most +10)")


def _seconds(folder: str, *options: str) -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun
