"""``rlregress moved`` with everything cached: seconds and memory of two ends and the releases between, and bytes cold.

Reads the real index the first time, into a cache of its own.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 5
ASKED = {
    "verl 0.7.0 to 0.9.1, a command": [
        *("verl==0.7.0..0.9.1", "--", "python3", "-m", "verl.trainer.main_ppo"),
        *("algorithm.adv_estimator=grpo", "critic.model.fsdp_config.param_offload=True"),
    ],
    "trl 1.6.0 to 1.16.0, a command": ["trl==1.6.0..1.16.0", "--", "trl", "grpo", "--use_vllm", "true"],
    "vllm 0.31.0 to 0.33.0, both trainers": ["vllm==0.31.0..0.33.0"],
}


def main() -> None:
    """Time each question cold and warm, and print the medians."""
    with tempfile.TemporaryDirectory() as name:
        environ = {**os.environ, "RLREGRESS_CACHE_DIR": name}
        print(f"\nSeconds cold, then the median of {RUNS} warm (wanted: at most 60 and 10), and memory (400 MiB):")
        for title, words in ASKED.items():
            command = [sys.executable, "-m", "pytest_rlregress.cli", "moved", *words]
            cold, *warm = (ask(command, environ) for _ in range(RUNS + 1))
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"  {title:38} {cold:6.1f} {statistics.median(warm):6.2f} s {memory:6.0f} MiB")
        kept = sum(file.stat().st_size for file in Path(name).rglob("*") if file.is_file())
        print(f"  kept                                   {kept / 2**20:6.1f} MiB")


def ask(command: list[str], environ: dict[str, str]) -> float:
    """Ask once; returns the seconds."""
    begun = time.perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
