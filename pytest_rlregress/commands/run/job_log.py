"""Follow a job from when it was submitted to its end: what it prints, why it waits, how it ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_rlregress.commands.run import file_transfer
from pytest_rlregress.commands.run.cluster import last_line

#: Seconds from one try to the next, once the cluster does not answer; then it is given up.
RETRY_SECONDS = (1, 2, 4, 8, 15, 30)
_POLL_SECONDS = 0.5
#: Seconds after which a job that still waits is reported; each time later by the factor.
PENDING_SECONDS = 20
_PENDING_FACTOR = 3
_TAIL_LINES = 20


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, as far as could be seen.

    Attributes:
        status: Ray's word for it; "" if the cluster did not answer any more.
        message: Ray's, or the error of the connection.
        node: Ray's id of the node; "" if it never came to one.
        packets: Those in its log, see ``file_transfer``.
        tail: The last lines of its output.
    """

    status: str
    message: str
    node: str = ""
    packets: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()


class JobLog:
    """A job's log as it comes in, from one connection or several: each line is printed once, each packet kept."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self.packets: list[str] = []
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._print_line, self._length, self._rest = print_line, 0, ""

    @property
    def ended(self) -> bool:
        """Whether the job has sent its last packet."""
        return bool(file_transfer.fields_of(self.packets, "end"))

    def add(self, text: str, start: int) -> int:
        """Add a piece that begins at this character of the log; returns where it ends."""
        end = start + len(text)
        *lines, self._rest = (self._rest + text[max(0, self._length - start) :]).split("\n")
        self._length = max(self._length, end)
        for line in lines:
            self._add_line(line)
        return end

    def close(self) -> None:
        """No more comes: what has no end of line is a line too."""
        if self._rest:
            self._add_line(self._rest)

    def _add_line(self, line: str) -> None:
        output, packet = file_transfer.split_line(line)
        if packet:
            self.packets.append(packet)
        if output or not packet:
            self.tail.append(output)
            self._print_line(output)


def follow(client: Any, job_id: str, needs: str, print_line: Callable[[str], None], leaving: threading.Event) -> JobEnd:
    """Print what the job prints until it has ended, or does not answer, or still waits when ``leaving`` is set."""
    log = JobLog(print_line)
    started, next_notice, failures, node = time.monotonic(), float(PENDING_SECONDS), 0, ""
    while True:
        try:
            found = client.get_job_info(job_id)
            failures, node = 0, found.driver_node_id or ""
            status, message = str(found.status), str(found.message or "")
        except Exception as error:
            if failures == len(RETRY_SECONDS) or leaving.is_set():
                return JobEnd("", last_line(error), node, tuple(log.packets), tuple(log.tail))
            print_line(f"no answer, trying again in {RETRY_SECONDS[failures]} s: {last_line(error)}")
            time.sleep(RETRY_SECONDS[failures])
            failures += 1
            continue
        if found.status.is_terminal():
            break
        waited = time.monotonic() - started
        if status != "PENDING":
            with suppress(Exception):  # the stream may end at any time: whether the job has is asked above
                asyncio.run(_stream(client, job_id, log))
            if log.ended:
                break
        elif leaving.is_set():
            return JobEnd(status, message)
        elif waited > next_notice:
            next_notice *= _PENDING_FACTOR
            why = f"{needs} is in use, or the job's folder is on its way"
            print_line(f"pending for {waited:.0f} s: {why}; see ray status")
        time.sleep(_POLL_SECONDS)
    if not log.ended:
        with suppress(Exception):  # the node may be gone, and its log with it
            log.add(client.get_job_logs(job_id), 0)
    log.close()
    return JobEnd(status, message, node, tuple(log.packets), tuple(log.tail))


async def _stream(client: Any, job_id: str, log: JobLog) -> None:
    position = 0
    async for text in client.tail_job_logs(job_id):
        position = log.add(text, position)
        if log.ended:  # Ray takes some more seconds to see that
            return
