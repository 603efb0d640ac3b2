"""One job from when it was submitted to its end: what it prints, why it waits, how it ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_rlregress.run import file_transfer
from pytest_rlregress.run.cluster import brief

#: Seconds from one try to the next, once the cluster does not answer; then it is given up.
RETRY_SECONDS = (1, 2, 4, 8, 15, 30)
_POLL_SECONDS = 0.5
#: Seconds after which it is said that a job still waits; each time later by the factor.
PENDING_SECONDS = 20
_PENDING_FACTOR = 3
_TAIL_LINES = 20


@dataclass(frozen=True)
class End:
    """How a job ended, as far as could be seen.

    Attributes:
        status: Ray's word for it; "" if the cluster did not answer any more.
        message: Ray's, or the error of the connection.
        node: Ray's id of the node; "" if it never came to one.
        frames: What it framed in its log.
        tail: The last lines of its output.
    """

    status: str
    message: str
    node: str = ""
    frames: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()


class Log:
    """A job's log as it comes in, from one connection or several: each line is said once, each frame kept."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.frames: list[str] = []
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._say, self._taken, self._rest = say, 0, ""

    @property
    def ended(self) -> bool:
        """Whether the job has said its last word."""
        return bool(file_transfer.said(self.frames, "end"))

    def take(self, text: str, start: int) -> int:
        """Take a piece that begins at this character of the log; returns where it ends."""
        end = start + len(text)
        *lines, self._rest = (self._rest + text[max(0, self._taken - start) :]).split("\n")
        self._taken = max(self._taken, end)
        for line in lines:
            self._line(line)
        return end

    def close(self) -> None:
        """No more comes: what has no end of line is a line too."""
        if self._rest:
            self._line(self._rest)

    def _line(self, line: str) -> None:
        before, frame = file_transfer.find(line)
        if frame:
            self.frames.append(frame)
        if before or not frame:
            self.tail.append(before)
            self._say(before)


def follow(client: Any, job: str, waits_for: str, say: Callable[[str], None], leaving: threading.Event) -> End:
    """Say what the job prints until it has ended, or does not answer, or still waits when ``leaving``."""
    log = Log(say)
    begun, next_word, failures, node = time.monotonic(), float(PENDING_SECONDS), 0, ""
    while True:
        try:
            found = client.get_job_info(job)
            failures, node = 0, found.driver_node_id or ""
            status, message = str(found.status), str(found.message or "")
        except Exception as error:
            if failures == len(RETRY_SECONDS) or leaving.is_set():
                return End("", brief(error), node, tuple(log.frames), tuple(log.tail))
            say(f"no answer, trying again in {RETRY_SECONDS[failures]} s: {brief(error)}")
            time.sleep(RETRY_SECONDS[failures])
            failures += 1
            continue
        if found.status.is_terminal():
            break
        waited = time.monotonic() - begun
        if status != "PENDING":
            with suppress(Exception):  # the stream may end at any time: whether the job has is asked above
                asyncio.run(_stream(client, job, log))
            if log.ended:
                break
        elif leaving.is_set():
            return End(status, message)
        elif waited > next_word:
            next_word *= _PENDING_FACTOR
            say(f"pending for {waited:.0f} s: {waits_for} is in use, or the job's folder is on its way; see ray status")
        time.sleep(_POLL_SECONDS)
    if not log.ended:
        with suppress(Exception):  # the node may be gone, and its log with it
            log.take(client.get_job_logs(job), 0)
    log.close()
    return End(status, message, node, tuple(log.frames), tuple(log.tail))


async def _stream(client: Any, job: str, log: Log) -> None:
    position = 0
    async for text in client.tail_job_logs(job):
        position = log.take(text, position)
        if log.ended:  # Ray takes some more seconds to see that
            return
