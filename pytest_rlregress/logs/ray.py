"""Finds in the logs of a Ray session which workers and daemons died, and of what: Ray's exceptions name no signal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.logs import ansi

_READ_BYTES, _LOST_BYTES = 2**16, 2**20
_STACK_CHARACTERS = 4_000

# A Ray session's folder: what may say why something died.
_LOG = re.compile(r"worker-(?P<worker>\w+)-\w+-(?P<pid>\d+)\.err|(?P<daemon>raylet|gcs_server).*\.(?:err|out)")
# Ray's own lines in a worker's log: ":job_id:01000000", ":actor_name:Rollout", ":task_name:train".
_MARK = re.compile(r"^:(?:job_id:|(?P<kind>actor|task)_name:(?P<name>.*)).*$", re.MULTILINE)
# A line of a daemon that warns: "[2026-11-21 16:14:35,570 W 26862 26862] (raylet) node_manager.cc:129: …". Most inform.
_WARNING = re.compile(r"\[\S+ \S+ [WEFC] ")
# When a signal ends a worker or a daemon, Ray's handler writes the first of these, then the same again as log lines;
# then comes Python's faulthandler. SIGTERM is how Ray stops a worker.
#   *** SIGFPE received at time=1795277675 on cpu 0 ***
#   [2026-11-21 16:14:35,550 E 27006 27006] logging.cc:474: *** SIGFPE received at time=1795277675 on cpu 0 ***
#   Fatal Python error: Floating point exception
#   Extension modules: msgpack._cmsgpack, google._upb._message, …
_SIGNAL = re.compile(r"^\*\*\* (SIG(?!TERM)[A-Z]+) received at time=", re.MULTILINE)
_REPEATED = re.compile(r"^(?:\[\S+ \S+ E .*logging\.cc:\d+: |Extension modules: ).*\n?", re.MULTILINE)
# gcs_server.out, of a worker whose own log says nothing. SIGKILL and os._exit look alike:
#   Reporting worker exit, worker id = 26794b…, node id = 5af536…, address = …, exit_type = SYSTEM_ERROR, exit_detail =
#   Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: …
_LOST_WORKER = re.compile(
    r"Reporting worker exit, worker id = (\w+),.* exit_detail = Worker unexpectedly exits with a connection error"
)
# gcs_server.out, of a raylet that is no more; a slow one does not refuse the connection:
#   Health check failed for node 8a048b…, remaining checks 4, status 14, … Connection refused, status details …
_LOST_NODE = re.compile(r"Health check failed for node (\w+),.*Connection refused")


# raylet.out, of a task or actor that waits for more than the cluster has: "… main.cc:985: The lease with ID 00000000…
# cannot be scheduled right now. It requires {CPU: 4} for placement, however the cluster currently cannot provide …"
_UNSCHEDULED = re.compile(r"cannot be scheduled right now\. (It requires \{.*?\} for placement, however [^.\n]*)")


@dataclass(frozen=True)
class RayDeath:
    """A Ray process that died.

    Attributes:
        signal: Name of the signal, from the process' own log, or None where no log tells.
        message: One line for people.
        stack: What the process wrote when it died, Python's stack included.
    """

    signal: str | None
    message: str
    stack: str = ""


def is_log(path: Path) -> bool:
    """Return whether a file of a session's logs may say why something died."""
    return _LOG.fullmatch(path.name) is not None


def is_daemons(path: Path) -> bool:
    """Return whether a file of a session's logs is one of Ray's own daemons."""
    found = _LOG.fullmatch(path.name)
    return found is not None and found["worker"] is None


def important(path: Path, lines: Sequence[str]) -> list[str]:
    """Return the lines of a daemon's log that may matter: of what it prints, only the raylet's warnings."""
    if path.suffix != ".out":
        return list(lines)
    return [line for line in lines if path.name.startswith("raylet") and _WARNING.match(line)]


def end_of(path: Path, limit: int) -> str:
    """Return the last bytes of a log as text; nothing of one that is gone."""
    with suppress(FileNotFoundError):
        return ansi.read(path, max(0, path.stat().st_size - limit), limit)
    return ""


def unscheduled(text: str) -> str:
    """Quote the line of a log that says what a task waits for in vain; "" if none does."""
    found = _UNSCHEDULED.search(text)
    return found[1] if found else ""


def deaths(logs: Iterable[Path], read: Callable[[Path, int], str] = end_of) -> list[RayDeath]:
    """Workers and daemons of Ray that died, the signal from their own logs.

    Args:
        logs: Those of a session.
        read: Gives what counts of a log, of which the last so many bytes.
    """
    logs = list(logs)
    found: dict[str, RayDeath] = {}
    for path in logs:
        text = read(path, _READ_BYTES) if path.suffix == ".err" else ""
        fatal = _SIGNAL.search(text)
        if fatal:
            begin = text.rfind("\n", 0, max(0, fatal.start() - 1)) + 1  # "free(): double free detected in tcache 2"
            stack = without_repetition(text[begin:]).strip()
            found[path.name] = RayDeath(fatal[1], f"{_name(path)} died of {fatal[1]}", stack[:_STACK_CHARACTERS])
    for path in logs:
        text = read(path, _LOST_BYTES) if path.name == "gcs_server.out" else ""
        for worker in _LOST_WORKER.findall(text):
            for log in path.parent.glob(f"worker-{worker}-*.err"):
                message = f"{_name(log)} is gone and left no word: SIGKILL, perhaps out of memory, or os._exit"
                found.setdefault(log.name, RayDeath(None, message))
        if not any(name.startswith("raylet") for name in found):
            for node in dict.fromkeys(_LOST_NODE.findall(text)):
                message = f"Ray's raylet of node {node[:8]} is gone and left no word: SIGKILL, perhaps out of memory"
                found[node] = RayDeath(None, message)
    return list(found.values())


def _name(log: Path) -> str:
    """Return the Ray process that writes this log: ``Ray worker 1234 (actor Rollout)``."""
    found = _LOG.fullmatch(log.name)
    if found is None:
        return log.name
    if found["daemon"]:
        return f"Ray's {found['daemon']}"
    names = [mark for mark in _MARK.finditer(ansi.read(log, 0, _READ_BYTES)) if mark["kind"]]
    return f"Ray worker {found['pid']}" + (f" ({names[-1]['kind']} {names[-1]['name']})" if names else "")


def without_repetition(text: str) -> str:
    """Return a log's text without Ray's own marks and what its handler of a signal says twice."""
    return _REPEATED.sub("", _MARK.sub("", text))
