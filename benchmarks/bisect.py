"""A candidate's environment: resolved and built by a bisect, against a bare `uv venv` and `uv pip install` of that set.

The packages around torch and transformers as they are installed here, with the next older release of transformers; both
from uv's warm cache. As in a bisect, the environment is moved from the candidate before. They alternate.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 7
ROOTS = {"torch", "transformers", "trl"}
WANTED = {"transformers": "5.10.2"}
IMPORTS = "import transformers, trl; from transformers import Qwen3ForCausalLM, Trainer; from trl import GRPOTrainer"


def main() -> None:
    """Time both and print the median of the ratios."""
    from importlib import metadata

    from uv import find_uv_bin

    from pytest_rlregress.commands.environments import indexes, requirements
    from pytest_rlregress.commands.environments.environment import Environments
    from pytest_rlregress.stack import locks

    installed, asked = locks.installed(), requirements.read_requirements(metadata.distributions())
    needed = requirements.find_dependencies(ROOTS, asked)
    base = locks.Lock({name: line for name, line in installed.lines.items() if name in needed})
    asked = {name: asked[name] for name in base.lines if name in asked}
    settings = indexes.read_settings(os.environ)
    variables = {**os.environ, **settings}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(*command: str | Path) -> float:
        begun = time.perf_counter()
        subprocess.run(command, env=variables, check=True, capture_output=True)
        return time.perf_counter() - begun

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environments = Environments(folder / "ours", settings=settings)
        run(environments.build(base).python, "-c", IMPORTS)
        set_ = folder / "set.txt"
        bare, resolve, build = [], [], []
        for _ in range(RUNS + 1):
            begun = time.perf_counter()
            lock = environments.resolve(base, WANTED, asked)
            resolve.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            ours = environments.build(lock)
            build.append(time.perf_counter() - begun)
            assert not ours.reused
            set_.write_text(lock.text)
            theirs = folder / "theirs"
            shutil.rmtree(theirs, ignore_errors=True)
            making = run(find_uv_bin(), "venv", "--python", sys.executable, theirs)
            python = theirs / "bin/python"
            bare.append(making + run(find_uv_bin(), "pip", "install", "--python", python, "-r", set_))
            if len(bare) <= RUNS:
                environments.build(base)
        first = {who: run(path, "-c", IMPORTS) for who, path in (("ours", ours.python), ("bare", python))}
        environments.close()

    ours_all = [sum(both) for both in zip(resolve, build, strict=True)][1:]
    ratio = statistics.median(one / other for one, other in zip(ours_all, bare[1:], strict=True))
    print(f"\nAn environment of {len(base.lines)} packages, {WANTED}, median of {RUNS}, alternating, cache warm:")
    print(f"  bare            {statistics.median(bare[1:]):7.2f} s, its first import {first['bare']:5.1f} s")
    print(f"  of a bisect     {statistics.median(ours_all):7.2f} s, its first import {first['ours']:5.1f} s")
    print(f"    resolved in   {statistics.median(resolve[1:]):7.2f} s")
    print(f"    built in      {statistics.median(build[1:]):7.2f} s")
    print(f"  bisect / bare   {ratio:7.2f}       (wanted: at most 1.2)")
