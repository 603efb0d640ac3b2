"""The logs a contained test depends on: an engine's, and those of a Ray session."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.logs.engine import EngineLog, plain

_READ_BYTES = 2**16
_TAIL_CHARACTERS = 4_000
_TAILS_CHARACTERS = 12_000

# vLLM names the process of every line: "(EngineCore pid=25990) INFO 11-21 16:12:35 [core.py:380] init engine …".
_ENGINE_CORE = re.compile(r"\(EngineCore\S* pid=(\d+)\)")

# A Ray session's folder: what may say why something died.
_RAY_LOG = re.compile(r"worker-(?P<worker>\w+)-\w+-(?P<pid>\d+)\.err|(?P<daemon>raylet|gcs_server).*\.(?:err|out)")
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


class Logs:
    """The logs of the test that runs, from its beginning on.

    Args:
        output: Where the test's own output goes: an engine in its process logs there.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._watched: list[Path] = []
        self._began_at: dict[Path, tuple[int, int]] = {}  # inode and size
        self._engines: dict[Path, EngineLog] = {}
        self._idle: dict[Path, _Idle] = {}

    def watch(self, path: Path) -> None:
        """Watch the log of an engine, or the logs folder of a Ray session. It need not exist yet."""
        if path not in self._watched:
            self._watched.append(path)

    def begin(self) -> None:
        """A test begins: what was logged before does not count."""
        self._began_at = {path: (status.st_ino, status.st_size) for path in self._files() if (status := _status(path))}
        self._engines = {path: EngineLog(path) for path in self._engine_logs()}
        self._idle = {}

    def stalled(self, seconds: float) -> str | None:
        """Quote the engine that logged an error, and for ``seconds`` since completed no request and computed nothing.

        To be called a few times a second. An engine at work is not taken for a stalled one: other rollouts than the
        refused may take long.
        """
        for path in self._engine_logs():
            if path not in self._engines:
                self._engines[path] = EngineLog(path)
            engine = self._engines[path]
            error = engine.failure()
            if error is None or engine.since is None:
                continue
            idle, now, computed = self._idle.get(path), time.monotonic(), _engine_seconds(path)
            if idle is None or idle.error != engine.since:
                idle = self._idle[path] = _Idle(engine.since, engine.since, computed)
            elif computed - idle.computed > 0.1 + 0.03 * (now - idle.since):  # idle ones were seen to take 0.02
                idle = self._idle[path] = _Idle(engine.since, now, computed)
            if now - idle.since >= seconds:
                return f"{error}\n({path})"
        return None

    def tails(self, lines: int = 30) -> list[tuple[str, str]]:
        """Title and last lines of each log that got new ones, latest first, Ray's daemons last; 12 kB in all."""
        tails, room = [], _TAILS_CHARACTERS
        latest_first = sorted(self._files(), key=_modified, reverse=True)
        for path in sorted(latest_first, key=self._is_daemons):
            new = [line for line in _without_repetition(self._new(path)).splitlines() if line.strip()]
            if self._is_daemons(path) and path.suffix == ".out":
                new = [line for line in new if path.name.startswith("raylet") and _WARNING.match(line)]
            text = "\n".join(new[-lines:])[-_TAIL_CHARACTERS:][-room:]
            if text and room > 0:
                tails.append((f"end of {path}", text))
                room -= len(text)
        return tails

    def deaths(self) -> list[RayDeath]:
        """Workers and daemons of Ray that died, the signal from their own logs: Ray's exceptions name none."""
        deaths: dict[str, RayDeath] = {}
        files = [path for path in self._files() if self._ray_log(path)]
        for path in files:
            text = self._new(path) if path.suffix == ".err" else ""
            fatal = _SIGNAL.search(text)
            if fatal:
                begin = text.rfind("\n", 0, max(0, fatal.start() - 1)) + 1  # "free(): double free detected in tcache 2"
                stack = _without_repetition(text[begin:]).strip()
                deaths[path.name] = RayDeath(fatal[1], f"{_name(path)} died of {fatal[1]}", stack[:_TAIL_CHARACTERS])
        for path in files:
            text = self._new(path, 2**20) if path.name == "gcs_server.out" else ""
            for worker in _LOST_WORKER.findall(text):
                for log in path.parent.glob(f"worker-{worker}-*.err"):
                    said = f"{_name(log)} is gone and left no word: SIGKILL, perhaps out of memory, or os._exit"
                    deaths.setdefault(log.name, RayDeath(None, said))
            if not any(name.startswith("raylet") for name in deaths):
                for node in dict.fromkeys(_LOST_NODE.findall(text)):
                    said = f"Ray's raylet of node {node[:8]} is gone and left no word: SIGKILL, perhaps out of memory"
                    deaths[node] = RayDeath(None, said)
        return list(deaths.values())

    def _files(self) -> Iterator[Path]:
        """Every watched file that exists."""
        for path in self._watched:
            if path.is_dir():
                with suppress(FileNotFoundError):  # Ray is stopping
                    yield from (entry for entry in sorted(path.iterdir()) if self._ray_log(entry))
            elif path.exists():
                yield path

    def _engine_logs(self) -> Iterator[Path]:
        """Logs in which an engine may say that it failed; one of Ray's workers may hold an engine."""
        yield from (self._output, *(path for path in self._watched if not path.is_dir()))
        yield from (path for path in self._files() if path not in self._watched and not self._is_daemons(path))

    def _ray_log(self, path: Path) -> re.Match[str] | None:
        return _RAY_LOG.fullmatch(path.name) if path.parent in self._watched else None

    def _is_daemons(self, path: Path) -> bool:
        found = self._ray_log(path)
        return found is not None and found["worker"] is None

    def _new(self, path: Path, limit: int = _READ_BYTES) -> str:
        """What was written since the test began, of which the last ``limit`` bytes."""
        status = _status(path)
        if status is None:
            return ""
        inode, size = self._began_at.get(path, (0, 0))
        replaced = inode != status.st_ino or size > status.st_size
        return _read(path, max(0 if replaced else size, status.st_size - limit), limit)


@dataclass(frozen=True)
class _Idle:
    """An engine's idleness: the error it follows, since when, and the engine's CPU seconds then."""

    error: float
    since: float
    computed: float


def _engine_seconds(log: Path) -> float:
    """CPU seconds that the engine cores writing to this log have taken; an idle one waits without taking any."""
    ticks = 0
    for pid in set(_ENGINE_CORE.findall(_read(log, 0, _READ_BYTES))):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _name(log: Path) -> str:
    """The Ray process that writes this log: ``Ray worker 1234 (actor Rollout)``."""
    found = _RAY_LOG.fullmatch(log.name)
    assert found
    if found["daemon"]:
        return f"Ray's {found['daemon']}"
    names = [mark for mark in _MARK.finditer(_read(log, 0, _READ_BYTES)) if mark["kind"]]
    return f"Ray worker {found['pid']}" + (f" ({names[-1]['kind']} {names[-1]['name']})" if names else "")


def _without_repetition(text: str) -> str:
    return _REPEATED.sub("", _MARK.sub("", text))


def _modified(path: Path) -> float:
    status = _status(path)
    return status.st_mtime if status else 0.0


def _status(path: Path) -> os.stat_result | None:
    """A log's size, time and identity, or None: logs go away with what wrote them."""
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _read(path: Path, offset: int, limit: int) -> str:
    """Part of a file as a terminal would show it in the end: no colours, the last state of a progress bar."""
    data = b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        data = file.read(limit)
    text = plain(data).replace("\0", "")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
