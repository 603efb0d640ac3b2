"""Run pytest on a node, and send the record back: ``python -m pytest_rlregress.commands.run.job -- PYTEST ARGS``.

It comes back through the job's own log, the one thing that every Ray cluster brings back. There, a line that begins
with ``MARK`` is a JSON object: the first says where the job runs, one has each file of the record, the last pytest's
exit code.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from pytest_rlregress.util.processes import end_with_parent

#: How a line for ``rlregress run`` begins. The number is the format's.
MARK = "rlregress-run/2 "
#: Seconds that pytest has to write its record, once the job is stopped; then it is killed and its journal sent back.
STOP_SECONDS = 25
_LINE_BYTES = 64 * 1024


def main(arguments: list[str] | None = None) -> int:
    """Run pytest and send back what it recorded.

    Returns:
        Its exit code, or 128 and the signal if it was killed by one.
    """
    parser = argparse.ArgumentParser(prog="python -m pytest_rlregress.commands.run.job")
    parser.add_argument("--here", action="store_true", help="run in this folder, not in an empty one")
    parser.add_argument("--record-url", help="where pytest writes its record, instead of sending it back")
    parser.add_argument("arguments", nargs="*", help="for pytest")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    stopped_at: list[float] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # Ray sends one of them to every process of the job
        signal.signal(number, lambda *_: stopped_at.append(time.monotonic()))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray's workers block it, and pytest would inherit that
    begun = time.monotonic()
    _print_line(packet(node=socket.gethostname(), harness=metadata.version("pytest-rlregress")))
    with tempfile.TemporaryDirectory(prefix="rlregress-") as folder:
        records, empty = Path(folder, "records"), Path(folder, "empty")
        empty.mkdir()
        # The last one counts, should the arguments name a folder too.
        records_to = f"--rl-record-dir={options.record_url or records}"
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options.arguments, records_to],
            cwd=None if options.here else empty,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Killed with the job: its GPU is the next one's.
            preexec_fn=partial(end_with_parent, signal.SIGKILL, os.getpid()),
        )
        copying = threading.Thread(target=_copy_lines, args=[process.stdout], daemon=True)
        copying.start()
        while process.poll() is None:
            if stopped_at and time.monotonic() > stopped_at[0] + STOP_SECONDS:
                process.kill()
            time.sleep(0.1)
        copying.join(2)  # whoever pytest left behind may hold the pipe open
        for path in sorted(records.glob("[!.]*.json*")):
            _print_line(file_packet(path.name, path.read_bytes()))
        _print_line(packet(exit=process.returncode, seconds=round(time.monotonic() - begun, 1)))
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def packet(**fields: Any) -> str:
    """Write fields as one line for ``rlregress run``, without its end."""
    return f"{MARK}{json.dumps(fields)}"


def file_packet(name: str, content: bytes) -> str:
    """Write a file as one line for ``rlregress run``."""
    packed = base64.b64encode(zlib.compress(content, 9)).decode()
    return packet(file=name, sha256=hashlib.sha256(content).hexdigest(), content=packed)


def environment(found: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for pytest: without Ray's variables, or the stack under test would join this cluster."""
    kept = {name: value for name, value in found.items() if not name.startswith(("RAY_", "SPT_"))}
    if kept.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del kept["PYTHONBREAKPOINT"]
    if kept.get("OMP_NUM_THREADS") == "":  # see cluster.submit: it was not set on the node
        del kept["OMP_NUM_THREADS"]
    return kept


def _copy_lines(output: BinaryIO) -> None:
    """Print whole lines of text: Ray cannot read a log that is anything else."""
    while line := output.readline(_LINE_BYTES):
        _print_line(line.decode(errors="replace").rstrip("\n"))


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a thread that still waits for the pipe must not hold up the end
