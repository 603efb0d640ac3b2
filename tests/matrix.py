"""One run of pytest over a folder of faults: what junit says of each test, and what survived."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
import xml.etree.ElementTree as ET
from pathlib import Path

MARK = "FAULT_MATRIX_RUN"


class Run:
    """pytest on ``folder``, its temporary files in ``temporary``: junit's cases, output, seconds, survivors, litter."""

    def __init__(self, folder: Path, temporary: Path, *options: str) -> None:
        mark = uuid.uuid4().hex
        # Bytecode is kept, or every process compiles the harness anew.
        environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": ""}
        environment["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}-inductor"  # a cache is to stay
        command = [sys.executable, "-m", "pytest", "--hw=cpu", "-v", "--junitxml=junit.xml", *options, "."]
        command.append(f"--basetemp={folder}-basetemp")
        shared_memory = set(os.listdir("/dev/shm"))
        begun = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
        self.seconds = time.monotonic() - begun
        self.output, self.returncode = done.stdout + done.stderr, done.returncode
        self.survivors = marked(mark)
        self.litter = sorted(p.name for p in temporary.iterdir()) + sorted(set(os.listdir("/dev/shm")) - shared_memory)
        self.cases: dict[str, list[tuple[str, str]]] = {}
        for case in ET.parse(folder / "junit.xml").getroot().iter("testcase"):
            said = [(e.tag, f"{e.get('message')}\n{e.text}") for e in case if e.tag in ("failure", "error", "skipped")]
            key = f"{case.get('classname')}::{case.get('name')}"
            self.cases.setdefault(key, []).extend(said or [("passed", "")])

    def of(self, module: str, test: str = "test_fault") -> tuple[str, str]:
        """What junit says of a test: passed, failure, error or skipped, and the text."""
        tags = self.cases[f"{module}::{test}"]
        told = [said for said in tags if said[0] != "passed"] or tags
        return told[0][0], "\n".join(text for _, text in told)


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
