"""A preview of one package, against bare uv: what it takes beside its two runs, and that there are two.

All packages of this environment with an older release of trl, both from uv's warm cache. Bare: ``uv venv`` and ``uv pip
install`` of the set that the preview resolved. They alternate.
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

RUNS = 5
WANTED = "trl==1.15.0"
TEST = "def test_nothing():\n    pass\n"


def main() -> None:
    """Time both and print the median of the ratios."""
    from uv import find_uv_bin

    from pytest_rlregress.commands.environments import indexes

    variables = {**os.environ, **indexes.read_settings(os.environ)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text(TEST)
        places = [f"--{option}={folder / option}" for option in ("cache-dir", "json", "output")]
        preview = [sys.executable, "-m", "pytest_rlregress.cli", "upgrade", WANTED, "test_nothing.py", *places]
        beside, bare, runs = [], [], []
        for _ in range(RUNS + 1):
            shutil.rmtree(folder / "cache-dir", ignore_errors=True)
            whole = _time(preview, folder, None)
            tried = json.loads((folder / "json").read_text())["tried"]
            runs.append(sum(one["runs"] for one in tried))
            beside.append(whole - sum(one["seconds"] for one in tried))
            shutil.rmtree(folder / "theirs", ignore_errors=True)
            making = _time([find_uv_bin(), "venv", "--python", sys.executable, "theirs"], folder, variables)
            install = [find_uv_bin(), "pip", "install", "--python", "theirs/bin/python", "-r", "output"]
            bare.append(making + _time(install, folder, variables))

    ratio = statistics.median(one / other for one, other in zip(beside[1:], bare[1:], strict=True))
    print(f"\nA preview of {WANTED}, median of {RUNS}, alternating, cache warm:")
    print(f"  runs of the tests        {max(runs):7}          (wanted: 2)")
    print(f"  bare venv and install    {statistics.median(bare[1:]):7.2f} s")
    print(f"  preview beside its runs  {statistics.median(beside[1:]):7.2f} s")
    print(f"  preview / bare           {ratio:7.2f}          (wanted: at most 1.2)")


def _time(command: list[str], folder: Path, variables: dict[str, str] | None) -> float:
    begun = time.perf_counter()
    subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)
    return time.perf_counter() - begun
