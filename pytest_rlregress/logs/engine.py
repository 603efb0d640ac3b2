"""Finds errors in an inference server's own log, and what takes one back."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from pytest_rlregress.logs.ansi import plain

# Lines of engines' logs, colours taken off. vLLM 0.13 and 0.22 name the process on every line, on uvicorn's too.
_PROCESS = r"(?:\([^)]*pid=\d+[^)]*\) )*"
# vLLM's own, with the prefix on each line of a traceback:
#   (APIServer pid=1) ERROR 12-01 05:34:47 [serving_chat.py:264] Error in preprocessing prompt inputs
_VLLM_ERROR = rf"{_PROCESS}ERROR \d\d-\d\d \d\d:\d\d:\d\d \S+\]"
# uvicorn's. The second is all that vLLM 0.31 logs of a request it refuses; 429 and 503 ask the client to come again.
#   ERROR:    Exception in ASGI application
#   INFO:     127.0.0.1:35682 - "POST /v1/completions HTTP/1.1" 400 Bad Request
_ERROR = re.compile(
    rf"(?P<vllm>{_VLLM_ERROR})|(?P<uvicorn>{_PROCESS}ERROR: )"
    rf'|{_PROCESS}INFO: .* "POST \S+ HTTP/[\d.]+" (?!429|503)[45]\d\d '
)
# Only an engine's end counts in a log that shows no request's end: start-up has errors that do no harm, such as "Cannot
# use FA version 2 is not supported due to …", and an engine in a Ray actor has no access log that would take one back.
# The last is all that vLLM 0.31 says when its core is killed; LLM.generate may then wait for ever. A progress bar that
# ends in no newline may stand before it.
_END = re.compile(
    rf"{_VLLM_ERROR.replace('ERROR', '(?:ERROR|WARNING)')} .*"
    r"(?:EngineDeadError|EngineCore (?:failed to start|encountered a fatal error)"
    r"|proc \S+ died unexpectedly|WorkerProc (?:failed|hit an exception)|engine core exited unexpectedly)"
)
_ACCESS = re.compile(rf'^{_PROCESS}INFO: .* "[A-Z]+ \S+ HTTP/[\d.]+" \d\d\d ', re.MULTILINE)
_COMPLETED = re.compile(rf'{_PROCESS}INFO: .* "POST (?!\S*tokenize )\S+ HTTP/[\d.]+" 2\d\d ')
# vLLM 0.22 logs this of any exception; which one it was comes after it: the access line and uvicorn's traceback.
_WORDLESS = re.compile(r"\] Exception caught\. Request id: \S+$")
# Why a request was refused, where VLLM_DEBUG_LOG_API_SERVER_RESPONSE=true makes vLLM log its answers.
_REASON = re.compile(r'response_body=\{\{"error":\{"message":"(.*?)","type"')
_RECORD = re.compile(rf"{_PROCESS}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ]")
_READ_BYTES = 2**20


class EngineLog:
    """Watches the log of an inference server from now on for an error after which it completes no request.

    Attributes:
        since: ``time.monotonic()`` when such an error was first seen, or None.
    """

    def __init__(self, path: Path) -> None:
        self.since: float | None = None
        self._path = path
        self._recent: deque[str] = deque(maxlen=16)
        self._errors: list[str] = []
        self._traceback: deque[str] = deque(maxlen=50)
        self._prefix: str | None = None  # of the lines of its traceback, None at their end
        self._reason = ""
        self._offset, self._inode, self._unfinished, self._has_access = 0, 0, b"", False
        with suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as file:
            status = os.fstat(file.fileno())
            self._offset, self._inode = status.st_size, status.st_ino
            self._has_access = bool(_ACCESS.search(plain(file.read(_READ_BYTES))))

    def failure(self, patience: float = 0.0) -> str | None:
        """Return the engine's words, if ``patience`` seconds passed since an error and no request was completed."""
        for line in self._new_lines():
            self._take(line)
        if self.since is None or time.monotonic() - self.since < patience:
            return None
        last = [line for line in self._traceback if line.strip(" ^~")][-2:]  # where, and what
        return "\n".join(line[:500] for line in [*self._errors, *last, self._reason] if line)

    def _take(self, line: str) -> None:
        self._has_access = self._has_access or bool(_ACCESS.match(line))
        error = _ERROR.match(line)
        if _COMPLETED.match(line):
            self.since = None
            self._recent.clear()
        elif self.since is None:
            self._recent.append(line)
            end = _END.search(line)
            if end or (error and self._has_access):
                self.since = time.monotonic()
                self._errors = [line[end.start() :] if end else line]
                self._traceback.clear()
                self._prefix = error and (error["vllm"] or error["uvicorn"])
                self._reason = next(filter(None, map(_reason, reversed(self._recent))), "")
        elif error and _WORDLESS.search(self._errors[0]) and not self._traceback:
            self._errors.append(line)
            self._prefix = error["vllm"] or error["uvicorn"]
        else:
            self._reason = self._reason or _reason(line)
            if (self._prefix or "").endswith("ERROR: ") and not _RECORD.match(line):
                self._traceback.append(line)
            elif self._prefix and line.startswith(self._prefix):
                self._traceback.append(line.removeprefix(self._prefix))
            else:
                self._prefix = None

    def _new_lines(self) -> list[str]:
        data = b""
        with suppress(FileNotFoundError, IsADirectoryError), self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:  # replaced or truncated
                self._offset, self._inode, self._unfinished = 0, status.st_ino, b""
            if status.st_size - _READ_BYTES > self._offset:  # what goes on the unfinished line is passed over
                self._offset, self._unfinished = status.st_size - _READ_BYTES, b""
            file.seek(self._offset)
            data = file.read(_READ_BYTES)
            self._offset += len(data)
        *lines, self._unfinished = (self._unfinished[-_READ_BYTES:] + data).split(b"\n")
        return [plain(line).strip("\r\0") for line in lines]


def _reason(line: str) -> str:
    found = _REASON.search(line)
    return f"its answer: {found[1]}" if found else ""
