"""A preview of one package, against bare uv: what it takes beside its two runs, and that there are two.

All packages of this environment with an older release of huggingface-hub, both from uv's warm cache. Bare: ``uv venv``
and ``uv pip install`` of the set that the preview resolved. They alternate.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure

RUNS = 5
WANTED = "huggingface-hub<1.33"
TEST = "def test_nothing():\n    pass\n"


def main() -> None:
    """Time both and print the median of the ratios."""
    from pytest_rlregress.environments.uv import read_settings

    variables = {**os.environ, **read_settings(os.environ)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text(TEST)
        places = [f"--{option}={folder / option}" for option in ("cache-dir", "json", "output")]
        preview = [sys.executable, "-m", "pytest_rlregress.cli", "upgrade", WANTED, "test_nothing.py", *places]
        beside, bare, runs = [], [], []
        for _ in range(RUNS + 1):
            shutil.rmtree(folder / "cache-dir", ignore_errors=True)
            begun = time.perf_counter()
            subprocess.run(preview, cwd=folder, check=True, capture_output=True)
            whole = time.perf_counter() - begun
            tried = json.loads((folder / "json").read_text())["tried"]
            runs.append(sum(one["runs"] for one in tried))
            beside.append(whole - sum(one["seconds"] for one in tried))
            bare.append(measure.time_bare_install(folder / "output", folder / "theirs", variables))

    ratio = statistics.median(one / other for one, other in zip(beside[1:], bare[1:], strict=True))
    print(f"\nA preview of {WANTED}, median of {RUNS}, alternating, cache warm:")
    print(f"  runs of the tests        {max(runs):7}          (wanted: 2)")
    print(f"  bare venv and install    {statistics.median(bare[1:]):7.2f} s")
    print(f"  preview beside its runs  {statistics.median(beside[1:]):7.2f} s")
    print(f"  preview / bare           {ratio:7.2f}          (wanted: at most 1.2)")
