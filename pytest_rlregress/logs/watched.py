"""Watches the logs a contained test depends on: an engine's, and those of a Ray session."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_rlregress.logs import ansi, ray
from pytest_rlregress.logs.engine import EngineLog

_READ_BYTES = 2**16
_TAIL_CHARACTERS = 4_000
_TAILS_CHARACTERS = 12_000

# vLLM names the process of every line: "(EngineCore pid=25990) INFO 11-21 16:12:35 [core.py:380] init engine …".
_ENGINE_CORE = re.compile(r"\(EngineCore\S* pid=(\d+)\)")


class Logs:
    """The logs of the test that runs, from its beginning on.

    Args:
        output: Where the test's own output goes: an engine in its process logs there.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._watched: list[Path] = []
        self._ended = set[Path]()
        self._began_at: dict[Path, tuple[int, int]] = {}  # inode and size
        self._engines: dict[Path, EngineLog] = {}
        self._idle: dict[Path, _Idle] = {}

    def watch(self, path: Path, ended: bool = False) -> None:
        """Watch the log of an engine, or the logs folder of a Ray session. It need not exist yet.

        Once the engine's work has ended, an error in the log stalls nobody; its tail is kept.
        """
        if path not in self._watched:
            self._watched.append(path)
        if ended:
            self._ended.add(path)

    def begin(self) -> None:
        """Begin with a test: what was logged before doesn't count."""
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
        tails, left = [], _TAILS_CHARACTERS
        latest_first = sorted(self._files(), key=_modified, reverse=True)
        for path in sorted(latest_first, key=self._is_daemons):
            new = [line for line in ray.without_repetition(self._new(path)).splitlines() if line.strip()]
            if self._is_daemons(path):
                new = ray.important(path, new)
            text = "\n".join(new[-lines:])[-_TAIL_CHARACTERS:][-left:]
            if text and left > 0:
                tails.append((f"end of {path}", text))
                left -= len(text)
        return tails

    def deaths(self) -> list[ray.RayDeath]:
        """Workers and daemons of Ray that died since the test began."""
        return ray.deaths([path for path in self._files() if self._is_ray_log(path)], self._new)

    def _files(self) -> Iterator[Path]:
        """Yield every watched file that exists."""
        for path in self._watched:
            if path.is_dir():
                with suppress(FileNotFoundError):  # Ray is stopping
                    yield from (entry for entry in sorted(path.iterdir()) if self._is_ray_log(entry))
            elif path.exists():
                yield path

    def _engine_logs(self) -> Iterator[Path]:
        """Logs in which an engine may say that it failed; one of Ray's workers may hold an engine."""
        paths = [self._output, *(path for path in self._watched if not path.is_dir())]
        paths += [path for path in self._files() if path not in self._watched and not self._is_daemons(path)]
        yield from (path for path in paths if self._ended.isdisjoint((path, path.parent)))

    def _is_ray_log(self, path: Path) -> bool:
        return path.parent in self._watched and ray.is_log(path)

    def _is_daemons(self, path: Path) -> bool:
        return path.parent in self._watched and ray.is_daemons(path)

    def _new(self, path: Path, limit: int = _READ_BYTES) -> str:
        """Read what was written since the test began: of much, the last ``limit`` bytes."""
        status = _status(path)
        if status is None:
            return ""
        inode, size = self._began_at.get(path, (0, 0))
        replaced = inode != status.st_ino or size > status.st_size
        return ansi.read(path, max(0 if replaced else size, status.st_size - limit), limit)


@dataclass(frozen=True)
class _Idle:
    """An engine's idleness: the error it follows, since when, and the engine's CPU seconds then."""

    error: float
    since: float
    computed: float


def _engine_seconds(log: Path) -> float:
    """CPU seconds that the engine cores writing to this log have taken; an idle one waits without taking any."""
    seconds = 0.0
    for pid in set(_ENGINE_CORE.findall(ansi.read(log, 0, _READ_BYTES))):
        with suppress(psutil.Error):
            times = psutil.Process(int(pid)).cpu_times()
            seconds += times.user + times.system
    return seconds


def _modified(path: Path) -> float:
    status = _status(path)
    return status.st_mtime if status else 0.0


def _status(path: Path) -> os.stat_result | None:
    """Return a log's size, time and identity, or None: logs go away with what wrote them."""
    with suppress(FileNotFoundError):
        return path.stat()
    return None
