"""What one process takes: its time by the clock, its core's time, its memory at most; of no other process before it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ran:
    """A process that has ended.

    Attributes:
        seconds: From its start to its end, by the clock.
        core_seconds: User's and system's time, with that of the children that it waited for.
    """

    code: int
    out: str
    err: str
    seconds: float
    core_seconds: float


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Ran:
    """Run a command in the checkout, where it can import this package, and wait for it alone.

    ``RUSAGE_CHILDREN`` would count every child that ends up waited for in the meantime.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ran(process.returncode, *texts, seconds, used.ru_utime + used.ru_stime)


def run_rlregress(*arguments: str | Path, code: int) -> tuple[Ran, float]:
    """Run the command, which has to end with ``code``; return also its memory at most, in MiB."""
    script = (
        "import sys; from pytest_rlregress.cli import main; code = main(sys.argv[1:]); "
        "from benchmarks.measure import peak_mib; print(peak_mib(), file=sys.stderr); sys.exit(code)"
    )
    done = run([sys.executable, "-c", script, *arguments])
    if done.code != code:
        sys.exit(f"exit code {done.code}\n{done.out[-2000:]}{done.err}")
    return done, float(done.err.split()[-1])


def time_bare_install(requirements: Path, folder: Path, env: Mapping[str, str]) -> float:
    """Return the seconds of a bare ``uv venv`` and ``uv pip install`` into a new ``folder``."""
    from uv import find_uv_bin

    shutil.rmtree(folder, ignore_errors=True)
    begun = time.perf_counter()
    for command in (
        ["venv", "--python", sys.executable, folder],
        ["pip", "install", "--python", folder / "bin/python"],
    ):
        more = ["-r", requirements] if command[0] == "pip" else []
        subprocess.run([find_uv_bin(), *command, *more], env=env, check=True, capture_output=True)
    return time.perf_counter() - begun


def peak_mib() -> float:
    """Resident memory of this process at most, in MiB, since its program began.

    ``ru_maxrss`` is no such figure, neither its own nor what ``wait4`` gives: between fork and exec a process counts as
    large as its parent, and that maximum stays.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) / 1024
    raise OSError("/proc/self/status has no VmHWM")
