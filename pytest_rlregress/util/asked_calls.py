"""Ask another process about a script's system calls that open a file to write or start a program (Linux 5.14).

seccomp holds the call until the answer is there: go on, fail, or here is a file to write to instead.
https://docs.kernel.org/userspace-api/seccomp_filter.html#userspace-notification
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_rlregress.util.confinement import begin_program, column_of, confine, end_with_parent, install_filter, load

_EQUAL, _ANY_BIT, _RETURN, _ALLOW, _ASK, _ERRNO = 0x15, 0x45, 0x06, 0x7FFF0000, 0x7FC00000, 0x00050000
_PR_SET_NO_NEW_PRIVS = 38
_RECEIVE, _SEND, _ADD_FILE = 0xC0502100, 0xC0182101, 0x40182103
_GO_ON, _SEND_FILE = 1, 2
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Numbers on x86_64 and aarch64, and which argument has the flags.
_OPEN, _OPENAT, _CREAT, _OPENAT2 = (2, None), (257, 56), (85, None), (437, 437)
_EXECVE, _EXECVEAT = (59, 221), (322, 281)
_LONGEST, _MOST_WORDS = 1 << 17, 1 << 16


@dataclass(frozen=True)
class Started:
    """A program that is about to be started."""

    path: str
    words: tuple[str, ...]
    environ: dict[str, str]
    folder: str


class AskedCalls:
    """Answers what a confined process and those below it ask, until none of them lives.

    Args:
        write: Takes the path and flags of a file that is opened to be written to; returns a descriptor to give
            instead, or None where the call may go on.
        start: Takes a program that is to be started; returns whether it may.
    """

    def __init__(self, write: Callable[[str, int], int | None], start: Callable[[Started], bool]) -> None:
        self._write, self._start = write, start
        self._column = column_of(platform.machine())

    def answer(self, channel: socket.socket, is_over: Callable[[], bool]) -> list[str]:
        """Answer until the last of them has ended or ``is_over()``; return what the kernel cannot hold, if anything.

        Args:
            channel: Its other end is what ``confine_and_start`` was given.
            is_over: Asked ten times a second.
        """
        said, descriptors = b"", array.array("i")
        while not said and not is_over():
            if select.select([channel], [], [], 0.1)[0]:
                said, rest, *_ = channel.recvmsg(4096, socket.CMSG_SPACE(4))
                for _, _, data in rest:
                    descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                if not said:
                    return ["it ended before it was confined"]
        if not descriptors:
            return said.decode().splitlines()
        listener = descriptors[0]
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        try:
            while not is_over():
                for _, event in poll.poll(100):
                    if event & select.POLLIN:
                        with suppress(FileNotFoundError):  # who asked has ended meanwhile
                            self._answer_one(listener)
                    elif event & select.POLLHUP:
                        return []
        finally:
            os.close(listener)
        return []

    def _answer_one(self, listener: int) -> None:
        asked = bytearray(80)
        fcntl.ioctl(listener, _RECEIVE, asked)
        number, pid, _, call, _, _, *arguments = struct.unpack("=QIIiIQ6Q", asked)
        try:
            given = self._decide(pid, call, arguments)
        except (OSError, ValueError):  # its memory can't be read
            given = -errno.EPERM
        if given is not None and given >= 0:
            flags = os.O_CLOEXEC if arguments[1 if call == _OPEN[self._column] else 2] & os.O_CLOEXEC else 0
            try:
                fcntl.ioctl(listener, _ADD_FILE, struct.pack("=QIIII", number, _SEND_FILE, given, 0, flags))
            finally:
                os.close(given)
        else:
            answer = struct.pack("=QqiI", number, 0, given or 0, 0 if given else _GO_ON)
            fcntl.ioctl(listener, _SEND, bytearray(answer))

    def _decide(self, pid: int, call: int, arguments: list[int]) -> int | None:
        """Return a descriptor, a negative error, or None to go on."""
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            if call == _EXECVE[self._column]:
                path, words, environ = arguments[0], arguments[1], arguments[2]
                variables = (one.partition("=")[::2] for one in _read_texts(memory, environ))
                folder = os.readlink(f"/proc/{pid}/cwd")
                started = Started(_read_text(memory, path), tuple(_read_texts(memory, words)), dict(variables), folder)
                return None if self._start(started) else -errno.EACCES
            beside, at = -100, 0
            if call == _OPENAT[self._column]:
                beside, at = ctypes.c_int(arguments[0] & 0xFFFFFFFF).value, 1
            flags = _WRITES & ~os.O_RDWR if call == _CREAT[self._column] else arguments[at + 1]
            name = _read_text(memory, arguments[at])
            folder = os.readlink(f"/proc/{pid}/cwd" if beside == -100 else f"/proc/{pid}/fd/{beside}")
        return self._write(os.path.normpath(os.path.join(folder, name)) if name else "", flags)


def _read_text(memory: object, address: int) -> str:
    found = b""
    while b"\0" not in found and len(found) < _LONGEST:
        step = 4096 - (address + len(found)) % 4096  # up to the end of a page: the next may not be there
        found += os.pread(memory.fileno(), step, address + len(found))  # type: ignore[attr-defined]
    return os.fsdecode(found.partition(b"\0")[0])


def _read_texts(memory: object, address: int) -> list[str]:
    found: list[str] = []
    while address and len(found) < _MOST_WORDS:
        (one,) = struct.unpack("=Q", os.pread(memory.fileno(), 8, address + 8 * len(found)))  # type: ignore[attr-defined]
        if not one:
            break
        found.append(_read_text(memory, one))
    return found


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the filter's steps: it asks about opening to write and starting, and lets all else go on."""
    column = column_of(machine)
    steps = list(begin_program(machine))
    ask, allow = (_RETURN, 0, 0, _ASK), (_RETURN, 0, 0, _ALLOW)
    for numbers, argument in ((_OPEN, 1), (_OPENAT, 2)):
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 4, number), load(argument), (_ANY_BIT, 0, 1, _WRITES), ask, allow]
    refusals = ((_OPENAT2, errno.ENOSYS), (_EXECVEAT, errno.EPERM))
    for numbers, code in refusals:
        steps += [(_EQUAL, 0, 1, numbers[column] or 0), (_RETURN, 0, 0, _ERRNO | code)]
    for numbers in (_CREAT, _EXECVE):
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, number), ask]
    return [*steps, allow]


def confine_and_start(folder: str, channel: int, words: list[str]) -> None:
    """Confine this process, have it ask over ``channel``, and become a program; say over it what can't be held."""
    end_with_parent()
    with socket.socket(fileno=channel) as asked:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        try:
            listener = install_filter(libc, _program(platform.machine()), listens=True)
        except OSError as error:
            asked.sendall(f"what it opens and starts: {error.strerror}".encode())
            sys.exit(1)
        os.set_inheritable(listener, False)
        asked.sendmsg([b"-"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
        os.close(listener)
        if left := confine(folder, starts=True):
            Path(folder, "unconfined").write_text("\n".join(left), encoding="utf-8")
            sys.exit(1)
    os.execv(words[0], words)


if __name__ == "__main__":
    confine_and_start(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
