"""What a job does on its node: ``python -m pytest_rlregress.run.job -- PYTEST ARGS`` runs pytest as anyone would
there, and hands the record back through the job's own log, the one thing that every Ray cluster brings back.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from pytest_rlregress.run import file_transfer
from pytest_rlregress.util.processes import end_with_parent

#: Seconds that pytest has to write its record, once the job is stopped; then it is killed and its journal handed back.
STOP_SECONDS = 25
_LINE_BYTES = 64 * 1024


def main(arguments: list[str] | None = None) -> int:
    """Run pytest, hand back what it recorded; returns its exit code, 128 and the signal if it was killed by one."""
    parser = argparse.ArgumentParser(prog="python -m pytest_rlregress.run.job")
    parser.add_argument("--here", action="store_true", help="run in this folder, not in an empty one")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    told: list[float] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray sends one of them to every process of the job
        signal.signal(number, lambda *_: told.append(time.monotonic()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray's workers block it, and pytest would inherit that
    begun = time.monotonic()
    _tell(file_transfer.note("begin", node=socket.gethostname(), harness=metadata.version("pytest-rlregress")))
    with tempfile.TemporaryDirectory(prefix="rlregress-") as room:
        records, empty = Path(room, "records"), Path(room, "empty")
        empty.mkdir()
        # The last one counts, should the arguments name a folder too.
        command = [sys.executable, "-m", "pytest", *options.arguments, f"--rl-record-dir={records}"]
        process = subprocess.Popen(
            command,
            cwd=None if options.here else empty,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )
        pump = threading.Thread(target=_pump, args=[process.stdout], daemon=True)
        pump.start()
        while process.poll() is None:
            if told and time.monotonic() > told[0] + STOP_SECONDS:
                process.kill()
            time.sleep(0.1)
        pump.join(2)  # whoever pytest left behind may hold the pipe open
        for path in sorted(records.glob("[!.]*.json*")):
            for line in file_transfer.pack(path.name, path.read_bytes()):
                _tell(line)
        _tell(file_transfer.note("end", exit=process.returncode, seconds=round(time.monotonic() - begun, 1)))
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def environment(found: Mapping[str, str]) -> dict[str, str]:
    """What pytest sees: nothing of the cluster that placed the job, or the stack under test would join that."""
    kept = {name: value for name, value in found.items() if not name.startswith(("RAY_", "SPT_"))}
    if kept.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del kept["PYTHONBREAKPOINT"]
    if kept.get("OMP_NUM_THREADS") == "":  # see cluster.submit: it was not set on the node
        del kept["OMP_NUM_THREADS"]
    return kept


def _end_with_parent() -> None:
    """A killed job gives its GPU to the next one: pytest must not go on."""
    end_with_parent(signal.SIGKILL)


def _pump(output: BinaryIO) -> None:
    """Hand on whole lines of text: Ray cannot read a log that is anything else."""
    while line := output.readline(_LINE_BYTES):
        _tell(line.decode(errors="replace").rstrip("\n"))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a thread that still waits for the pipe must not hold up the end
