"""Observes what a test's processes use (Linux): the most memory that each had, the native libraries it had mapped.

The kernel keeps a high-water mark for each process. It is set back when a test begins, so that tests that share
processes have each its own numbers. It is read in the child when the test has come to its end, its fixtures have not;
of processes that were gone by then, and of a test that does not come to its end, what was seen last counts.

No verdict depends on the memory: the record and the report's page show it, so that a test that was killed for lack of
memory says which process took it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_rlregress.stack import libraries_in, library_version
from pytest_rlregress.util.processes import Process, descendants, living, name_of, read

#: Name of the test's own process.
TEST = "test"
_FORK = "fork of the test"
_SHARE = 0.02  # of the time, for looking while a test runs: a cluster of Ray takes 10 ms each
_SET_BACK = b"5"  # https://docs.kernel.org/filesystems/proc.html, clear_refs
_STATUS = re.compile(rb"^(Name|VmHWM|VmLib):\s*(.*?)(?: kB)?$", re.MULTILINE)


@dataclass(frozen=True)
class Use:
    """What one process has used.

    Attributes:
        thread: What the kernel calls its first thread: part of a title, or of the program's name.
        peak: The most resident bytes since its high-water mark was set back.
        code: Bytes of libraries that it has mapped: another number once one is loaded or another program runs.
        gpu: Bytes on GPUs, as the driver counts them at this moment; 0 where it does not say.
    """

    process: Process
    name: str
    thread: str
    peak: int
    code: int
    gpu: int = 0


def look(test: int, reaper: int, known: Mapping[Process, Use]) -> list[Use]:
    """What the test's process and its living descendants, which are all below ``reaper``, have used.

    Args:
        test: Pid of the test's process.
        reaper: Pid of the one that takes in its orphans.
        known: What has been seen before: of those that have not changed since no command line is read. That takes a
            lock that a process may hold which hangs in a driver.
    """
    own = living(test)
    return [
        use
        for process in {own, *descendants(reaper)}
        if process is not None and (use := _use(process, test, known.get(process))) is not None
    ]


def _use(process: Process, test: int, before: Use | None) -> Use | None:
    with suppress(OSError):
        status = dict(_STATUS.findall(read(f"/proc/{process.pid}/status")))
        if b"VmHWM" not in status:  # it is ending
            return None
        thread, code = status[b"Name"].decode(errors="replace"), int(status[b"VmLib"]) * 1024
        same = before is not None and (before.thread, before.code) == (thread, code)
        name = before.name if before and same else _name(process.pid, test)
        if name:  # else it is just becoming another program
            return Use(process, name, thread, int(status[b"VmHWM"]) * 1024, code)
    return None


def _name(pid: int, test: int) -> str:
    if pid == test:
        return TEST
    forked = read(f"/proc/{pid}/cmdline") == read(f"/proc/{test}/cmdline")
    return _FORK if forked else name_of(pid)


class Observer:
    """In the child: sets back when a test begins, and looks when it has ended, before its fixtures are torn down.

    Args:
        send: Takes a kind and a value for the pytest process.
        reaper: The process below which the test's descendants are.
        on_gpus: Bytes on GPUs by process.
    """

    def __init__(self, send: Callable[[str, Any], None], reaper: int, on_gpus: Callable[[], Mapping[int, int]]) -> None:
        self._send, self._reaper, self._on_gpus = send, reaper, on_gpus
        self._pid = os.getpid()
        self._code: dict[Process, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Set back the high-water marks of this process and of those that live on, where one may."""
        self._code = {process: code for process, code in self._code.items() if living(process.pid) == process}
        for pid in {self._pid, *(process.pid for process in self._code)}:
            with suppress(OSError), open(f"/proc/{pid}/clear_refs", "wb", buffering=0) as file:
                file.write(_SET_BACK)
        self._send("begun", None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send what is seen of each process, and the libraries of those that have mapped new ones."""
        if decides(report):
            with suppress(Exception):  # what a test has patched, such as os.listdir, is so until its teardown
                gpus = self._on_gpus()
                uses = look(self._pid, self._reaper, {})
                uses = [replace(use, gpu=gpus.get(use.process.pid, 0)) for use in uses]
                self._send("usage", [list(map(astuple, uses)), self._mapped(uses)])

    def _mapped(self, uses: Iterable[Use]) -> dict[str, list[str]]:
        """Libraries by family, of processes that have loaded something since: to read a map takes a millisecond."""
        found: dict[str, list[str]] = {}
        for use in uses:
            if self._code.get(use.process) != use.code:
                self._code[use.process] = use.code
                with suppress(OSError):
                    maps = read(f"/proc/{use.process.pid}/maps").decode(errors="replace")
                    code = "\n".join(line for line in maps.splitlines() if " r-xp " in line)
                    for family, paths in libraries_in(code).items():
                        found.setdefault(family, []).extend(map(str, paths))
        return found


class Usage:
    """In the pytest process: what has been seen of the test that runs in one child.

    Attributes:
        mapped: Paths of libraries by family, as the child told them.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew before another test; nothing is looked at until it has begun."""
        self.mapped: dict[str, list[str]] = {}
        self._seen: dict[Process, Use] = {}
        self._next = float("inf")

    def begin(self) -> None:
        """The child has set back what it may."""
        self._next = 0.0

    def look(self, test: int, reaper: int) -> None:
        """See what there is now, unless the last time is too short ago for what it cost."""
        begun = time.monotonic()
        if begun >= self._next:
            self._add(look(test, reaper, self._seen))
            now = time.monotonic()
            self._next = now + (now - begun) / _SHARE

    def receive(self, value: Sequence[Any]) -> None:
        """Take what the child's ``Observer`` sent."""
        uses, mapped = value
        for family, paths in mapped.items():
            self.mapped.setdefault(family, []).extend(paths)
        self._add(Use(Process(*process), *about) for process, *about in uses)

    def peaks(self) -> dict[str, int]:
        """Peak bytes by process name: of several of one name the largest; the test first, then by size."""
        found: dict[str, int] = {}
        for use in self._seen.values():
            for name, size in ((use.name, use.peak), (f"{use.name} (GPU)", use.gpu)):
                found[name] = max(found.get(name, 0), size)
        return {n: found[n] for n in sorted(found, key=lambda n: (n != TEST, -found[n])) if found[n]}

    def _add(self, uses: Iterable[Use]) -> None:
        """A process may have got a title since it was seen first; it has one memory."""
        for use in uses:
            before = self._seen.get(use.process, use)
            self._seen[use.process] = replace(use, peak=max(before.peak, use.peak), gpu=max(before.gpu, use.gpu))


class ReportedLibraries:
    """What the reports of a session have said of libraries so far: each is said once."""

    def __init__(self) -> None:
        self._paths: set[tuple[str, str]] = set()

    def properties(self, usage: Usage) -> list[tuple[str, object]]:
        """The user properties of the test that has run: its peaks, and the libraries that have not been said yet."""
        new: dict[str, list[dict[str, str | None]]] = {}
        for family, paths in usage.mapped.items():
            for path in dict.fromkeys(paths):
                if (family, path) not in self._paths:
                    self._paths.add((family, path))
                    new.setdefault(family, []).append({"path": path, "version": _version(Path(path))})
        found = {"rlregress_peak_memory": usage.peaks(), "rlregress_libraries": new}
        return [(name, json.dumps(value)) for name, value in found.items() if value]


def decides(report: pytest.TestReport) -> bool:
    """Whether a report is the one that carries its test's verdict."""
    whole = not is_subtest(report)
    return whole and (report.when == "call" or (report.when == "setup" and not report.passed))


def is_subtest(report: pytest.TestReport) -> bool:
    """Whether a report is of a part of a test: pytest 9's fixture ``subtests``, ``unittest``'s ``subTest``."""
    return hasattr(report, "context")


def _version(path: Path) -> str | None:
    with suppress(OSError):  # its environment may be gone
        return library_version(path)
    return None
