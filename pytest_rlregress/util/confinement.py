"""Have the kernel hold this process: it changes no file, reaches nobody and starts no process, until it ends (Linux).

Landlock holds files, https://docs.kernel.org/userspace-api/landlock.html; seccomp holds the rest. Neither can be
undone, and both hold for every thread and library of the process, whatever language it is written in.
It imports the standard library alone, and is also loaded by its file where this package may not be installed.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import platform
import signal
import struct
import sys
from collections.abc import Iterator

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # Landlock's system calls, the same on every architecture
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Writing, removing, making anything; since ABI 2 moving between folders; since ABI 3 truncating.
_CHANGES = (_WRITE_FILE | sum(1 << bit for bit in range(4, 13)), 1 << 13, _TRUNCATE)
_NO_TCP, _OTHERS_SOCKETS_AND_SIGNALS = 0b10, 0b11  # connecting, since ABI 4; since ABI 6
# What drivers are asked through, and what is nowhere. CUDA is shown no GPU.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/nvidia*", "/dev/kfd", "/dev/dri")

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_FILTER, _CLONE_THREAD = 2, 0x10000
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # in struct seccomp_data
_SET_FILTER, _LISTENS, _SECCOMP = 1, 1 << 3, (317, 277)
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# System calls by what the caller is told, with their numbers on x86_64 and aarch64; None where there is none.
_Numbers = tuple[int | None, int | None]
_STARTS: dict[str, _Numbers] = {"fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281)}
_REFUSED: dict[str, _Numbers] = {
    **{"connect": (42, 203), "listen": (50, 201), "sendmsg": (46, 211), "sendmmsg": (307, 269)},
    **{"rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424)},
    **{"ptrace": (101, 117), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "setpriority": (141, 140)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97)},
    **{"setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430)},
    **{"fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "quotactl": (179, 60)},
    **{"shmget": (29, 194), "shmctl": (31, 195), "msgget": (68, 186), "msgctl": (71, 187), "semget": (64, 190)},
    **{"semctl": (66, 191), "mq_open": (240, 180), "mq_unlink": (241, 181), "bpf": (321, 280)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "perf_event_open": (298, 241)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "acct": (163, 89)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224)},
    **{"swapoff": (168, 225), "sethostname": (170, 161), "setdomainname": (171, 162), "adjtimex": (159, 171)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266)},
}
# The C library has another way, which can be looked into.
_UNKNOWN: dict[str, _Numbers] = {"clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426)}
# Landlock doesn't know of them, and seccomp doesn't see the path: they do nothing, and say that they did.
_WITHOUT_EFFECT: dict[str, _Numbers] = {
    **{"chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452)},
    **{"chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54)},
    **{"utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88)},
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466)},
    **{"file_setattr": (469, 469)},
}
_CLONE, _SENDTO = (56, 220), (44, 206)
_OF_ONE_PROCESS: dict[str, _Numbers] = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}
_PRLIMIT = (302, 261)


def confine(folder: str, *, starts: bool = False) -> list[str]:
    """Confine this process to a folder until it ends; return in words what the kernel here cannot hold.

    Args:
        folder: The one place where files may be made, changed and removed.
        starts: Whether it may start processes, which are held as it is.
    """
    if sys.platform != "linux":
        return ["files, processes and network: this isn't Linux"]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
        return [f"files, processes and network: {os.strerror(ctypes.get_errno())}"]
    left = []
    abi = 0
    try:
        abi = _hold_files(libc, folder)
    except OSError as error:
        left.append(f"files: {error.strerror or error}")
    try:
        # From ABI 6 on Landlock keeps signals among the processes that this one starts.
        install_filter(libc, list(_program(platform.machine(), starts, signals=starts and abi >= 6)))
    except OSError as error:
        left.append(f"processes and network: {error.strerror or error}")
    return left


def _hold_files(libc: ctypes.CDLL, folder: str) -> int:
    """Let files be changed in one folder only; return Landlock's ABI.

    Raises:
        OSError: The kernel has no Landlock that can hold it.
    """

    def call(number: int, *arguments: object) -> int:
        result = int(libc.syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
        return result

    null = ctypes.c_void_p()
    abi = call(_CREATE, null, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    if abi < 3:
        raise OSError(errno.ENOSYS, f"Landlock's ABI is {abi}, and it takes 3 to hold what truncates")
    changes = sum(_CHANGES)
    attributes = struct.pack("QQQ", changes, _NO_TCP, _OTHERS_SOCKETS_AND_SIGNALS)
    attributes = attributes[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    rules = call(_CREATE, ctypes.c_char_p(attributes), ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    allowed = [(folder, changes)]
    for pattern in _DEVICES:
        allowed += [
            (path, _WRITE_FILE if os.path.isdir(path) else _WRITE_FILE | _TRUNCATE) for path in glob.glob(pattern)
        ]
    for path, access in allowed:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", access, place)
        call(_ADD, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), ctypes.c_char_p(rule), ctypes.c_uint32(0))
        os.close(place)
    call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    os.close(rules)
    return abi


def column_of(machine: str) -> int:
    """Return the column of a processor's numbers in the tables of system calls.

    Raises:
        OSError: They aren't known here.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: system calls of {machine} aren't known here")
    return [*_ARCHITECTURES].index(machine)


def install_filter(libc: ctypes.CDLL, steps: list[tuple[int, int, int, int]], *, listens: bool = False) -> int:
    """Have seccomp look at each system call; return the descriptor on which it asks about calls, if it ``listens``.

    Raises:
        OSError: The kernel has no seccomp, or none that asks.
    """
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.c_char_p(struct.pack("HP", len(steps), ctypes.addressof(code)))
    if listens:
        number = _SECCOMP[column_of(platform.machine())]
        done = int(libc.syscall(ctypes.c_long(number), ctypes.c_uint(_SET_FILTER), ctypes.c_uint(_LISTENS), program))
    else:
        done = libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER), program, *map(ctypes.c_ulong, (0, 0)))
    if done < 0:
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
    return done


def begin_program(machine: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield a filter's first steps, after which the number of the call is loaded."""
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    yield from ((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _ARCHITECTURES[machine]), refuse)
    yield (_LOAD, 0, 0, _NUMBER)
    if machine == "x86_64":  # the calls of x32 have numbers of their own
        yield from ((_AT_LEAST, 0, 1, 0x40000000), refuse)


def _program(machine: str, starts: bool, signals: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield the filter's steps: operation, steps to skip if it holds and if not, operand."""
    column = column_of(machine)
    refuse, allow = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    yield from begin_program(machine)
    refused = _REFUSED if starts else _STARTS | _REFUSED
    for calls, code in ((refused, errno.EPERM), (_UNKNOWN, errno.ENOSYS), (_WITHOUT_EFFECT, 0)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                yield from ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | code))
    if not starts:  # a thread is a clone too
        yield from ((_EQUAL, 0, 4, _CLONE[column]), load(0), (_ANY_BIT, 1, 0, _CLONE_THREAD), refuse, allow)
    # An address makes sendto reach whom it wants.
    yield from (
        (_EQUAL, 0, 6, _SENDTO[column]),
        load(4),
        (_EQUAL, 0, 2, 0),
        load(4, 4),
        (_EQUAL, 1, 0, 0),
        refuse,
        allow,
    )
    for numbers in () if signals else _OF_ONE_PROCESS.values():
        yield from ((_EQUAL, 0, 4, numbers[column] or 0), load(0), (_EQUAL, 1, 0, os.getpid()), refuse, allow)
    yield from (
        (_EQUAL, 0, 5, _PRLIMIT[column]),
        load(0),
        (_EQUAL, 2, 0, 0),
        (_EQUAL, 1, 0, os.getpid()),
        refuse,
        allow,
    )
    yield allow


def load(argument: int, offset: int = 0) -> tuple[int, int, int, int]:
    """Return the step that loads half of a call's argument, on machines that store the low half first."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + offset)


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
