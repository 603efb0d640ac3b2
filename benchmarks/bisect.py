"""A candidate's environment: resolved and built by a bisect, against a bare `uv venv` and `uv pip install` of that set.

The packages around torch and transformers as they are installed here, with the next older release of transformers; both
from uv's warm cache. As in a bisect, the environment is moved from the candidate before. They alternate.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import measure

RUNS = 7
ROOTS = {"torch", "transformers", "trl"}
WANTED = {"transformers": "5.10.2"}
IMPORTS = "import transformers, trl; from transformers import Qwen3ForCausalLM, Trainer; from trl import GRPOTrainer"


def main() -> None:
    """Time both and print the median of the ratios."""
    from pytest_rlregress.environments.environment import Environments
    from pytest_rlregress.environments.uv import read_settings
    from pytest_rlregress.stack import requirements
    from pytest_rlregress.stack.locks import Lock, installed

    asked = requirements.read_requirements()
    needed = requirements.find_dependencies(ROOTS, asked)
    base = Lock({name: line for name, line in installed().lines.items() if name in needed})
    asked = {name: asked[name] for name in base.lines if name in asked}
    settings = read_settings(os.environ)
    variables = {**os.environ, **settings}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)

    def time_import(python: Path) -> float:
        begun = time.perf_counter()
        subprocess.run([python, "-c", IMPORTS], env=variables, check=True, capture_output=True)
        return time.perf_counter() - begun

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environments = Environments(folder / "ours", settings=settings)
        time_import(environments.build(base).python)
        bare, resolve, build = [], [], []
        for _ in range(RUNS + 1):
            environments.build(base)
            begun = time.perf_counter()
            lock = environments.resolver.resolve(base, WANTED, asked)
            resolve.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            ours = environments.build(lock)
            build.append(time.perf_counter() - begun)
            assert not ours.reused
            (folder / "set.txt").write_text(lock.text)
            bare.append(measure.time_bare_install(folder / "set.txt", folder / "theirs", variables))
        imports = time_import(ours.python), time_import(folder / "theirs/bin/python")
        environments.close()

    all_of_it = [sum(both) for both in zip(resolve, build, strict=True)][1:]
    ratio = statistics.median(one / other for one, other in zip(all_of_it, bare[1:], strict=True))
    print(f"\nAn environment of {len(base.lines)} packages, {WANTED}, median of {RUNS}, alternating, cache warm:")
    print(f"  bare            {statistics.median(bare[1:]):7.2f} s, its first import {imports[1]:5.1f} s")
    print(f"  of a bisect     {statistics.median(all_of_it):7.2f} s, its first import {imports[0]:5.1f} s")
    print(f"    resolved in   {statistics.median(resolve[1:]):7.2f} s")
    print(f"    built in      {statistics.median(build[1:]):7.2f} s")
    print(f"  bisect / bare   {ratio:7.2f}       (wanted: at most 1.2)")
