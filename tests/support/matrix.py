"""One run of pytest over a folder of faults: what junit says of each test, and what survived."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from contextlib import ExitStack, suppress
from pathlib import Path

from patience import PATIENCE

MARK = "FAULT_MATRIX_RUN"


class Run:
    """pytest on ``folder``; begins at once.

    After `end`: junit's cases and the seconds that each took, output, exit code, seconds, survivors and leftovers.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._mark, self._end = folder, uuid.uuid4().hex, ExitStack()
        # A short path, because Unix sockets are below, and the path of one may have 107 bytes.
        temporary = tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True)
        self._temporary = Path(self._end.enter_context(temporary))
        # Bytecode is kept, or every process compiles the harness again.
        environment = {**os.environ, MARK: self._mark, "TMPDIR": str(self._temporary), "PYTHONDONTWRITEBYTECODE": ""}
        environment["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}-inductor"  # a cache is to stay
        junit = f"--junitxml={folder}-junit.xml"
        command = [sys.executable, "-m", "pytest", "--hw=cpu", "-v", junit, *options, "."]
        command.append(f"--basetemp={folder}-basetemp")
        self._shared_memory = set(os.listdir("/dev/shm"))
        self._begun = time.monotonic()
        self._printed = Path(f"{folder}-output")  # a pipe that nobody reads meanwhile would be full
        with self._printed.open("w") as file:
            self._pytest = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)

    def wait(self) -> None:
        """Wait for pytest, and read what it says."""
        self.returncode = self._pytest.wait(timeout=PATIENCE)
        self.seconds = time.monotonic() - self._begun
        self.survivors = marked(self._mark)
        self.output = self._printed.read_text(encoding="utf-8", errors="replace")
        self.cases: dict[str, list[tuple[str, str]]] = {}
        self.took: dict[str, float] = {}
        for case in ET.parse(f"{self._folder}-junit.xml").getroot().iter("testcase"):
            said = [(e.tag, f"{e.get('message')}\n{e.text}") for e in case if e.tag in ("failure", "error", "skipped")]
            key = f"{case.get('classname')}::{case.get('name')}"
            self.cases.setdefault(key, []).extend(said or [("passed", "")])
            self.took[key] = float(case.get("time", "nan"))

    def look(self) -> None:
        """Look for files that it left. What a living process has mapped is of somebody else: survivors are told of."""
        left = set(os.listdir("/dev/shm")) - self._shared_memory
        self.leftovers = sorted(p.name for p in self._temporary.iterdir()) + sorted(left - (left and mapped()))
        self._end.close()

    def of(self, module: str, test: str = "test_fault") -> tuple[str, str]:
        """What junit says of a test: passed, failure, error or skipped, and the text."""
        tags = self.cases[f"{module}::{test}"]
        told = [said for said in tags if said[0] != "passed"] or tags
        return told[0][0], "\n".join(text for _, text in told)


def end(*runs: Run) -> tuple[Run, ...]:
    """Wait for runs that were begun at the same time; only then does nothing in shared memory belong to them."""
    for run in runs:
        run.wait()
    for run in runs:
        run.look()
    return runs


def mapped() -> set[str]:
    """Names of the files in shared memory that living processes have mapped."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found.update(re.findall(r" /dev/shm/(\S+)$", maps.read_text(), re.MULTILINE))
    return found


def marked(mark: str) -> list[str]:
    """Living processes, by command line, that have the mark in their environment: it is inherited."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}")
            except OSError:
                continue
    return found
