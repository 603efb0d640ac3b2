"""Explains a death: the native libraries that the process had loaded, and whether it was killed for lack of memory."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath

import psutil
from packaging.utils import canonicalize_name

from pytest_rlregress import stack
from pytest_rlregress.util.files import text_or_nothing

_LINES = 15
_KERNEL_LINES = 6
_FOLDERS = 4  # of a path, from its end
# What tells which build of a component was loaded.
_CORES = {
    "torch": r"/torch/lib/libtorch_(cpu|cuda)\.so$",
    "vllm": r"/vllm/_C[^/]*\.so$",
    "ray": r"/ray/_raylet[^/]*\.so$",
}
# What the memory controller counts: of version 2 in memory.events, of version 1 in memory.oom_control and its own file.
# https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
_COUNTERS = {
    "memory.events": ("oom_kill", "oom_group_kill", "oom", "max"),
    "memory.oom_control": ("oom_kill",),
    "memory.failcnt": ("failcnt",),
}
# Version 2's name, version 1's.
_SIZES = {
    "limit": ("memory.max", "memory.limit_in_bytes"),
    "in use": ("memory.current", "memory.usage_in_bytes"),
    "at most": ("memory.peak", "memory.max_usage_in_bytes"),
}
_NO_LIMIT = 1 << 60  # version 1 says the largest multiple of a page
_MACHINE, _VMSTAT, _KMSG = "machine", "proc/vmstat", "dev/kmsg"
_OUT_OF_MEMORY = re.compile(r"oom-kill:|out of memory", re.IGNORECASE)
_RECORD = 8192  # bytes; the kernel refuses to give a record to a smaller buffer


def libraries(maps: str) -> str:
    """Native libraries that matter, from the text of a /proc/PID/maps: at most 15 lines of family, version and path.

    Libraries of one family, version and folder share a line: two lines of one family are two copies in one process.
    The last line counts all others. Empty if none that matters was loaded.
    """
    native = sorted(set(re.findall(r"(/.*\.so(?:\.[\d.]+)?)(?: \(deleted\))?$", maps, flags=re.MULTILINE)))
    files = {name: [Path(file) for file in native if re.search(regex, file)] for name, regex in _CORES.items()}
    files |= stack.libraries_in(maps)
    copies: dict[tuple[str, str, Path], list[Path]] = {}
    for family, paths in files.items():
        for path in paths:
            copies.setdefault((family, _version(family, path), path.parent), []).append(path)
    if not copies:
        return ""
    lines = []
    for (family, version, _), paths in copies.items():
        more = f" and {len(paths) - 1} more beside it" if len(paths) > 1 else ""
        lines.append(f"{family} {version or '(version unknown)'}  {_short(paths[0])}{more}")
    if len(lines) >= _LINES:
        lines[_LINES - 2 :] = [f"{len(lines) - _LINES + 2} more of these families"]
    others = len(native) - sum(map(len, copies.values()))
    return "\n".join([*lines, f"{others} other native libraries"])


def _version(family: str, path: Path) -> str:
    """The version that a file's name tells, or the metadata beside its package; empty where neither does."""
    with contextlib.suppress(OSError):  # the environment may be gone
        if family not in _CORES:
            return stack.library_version(path) or ""
        site = next(folder.parent for folder in path.parents if folder.name == family)
        for name in stack.COMPONENTS[family].distributions:
            for info in site.glob("*.dist-info"):
                project, _, version = info.name.removesuffix(".dist-info").partition("-")
                if canonicalize_name(project) == name:
                    return version
    return ""


def _short(path: Path) -> str:
    parts = path.parts
    return str(path) if len(parts) <= _FOLDERS + 1 else f"…/{'/'.join(parts[-_FOLDERS:])}"


@dataclass(frozen=True)
class Memory:
    """How often memory had run out when a test began, by cgroup and counter, and when on the kernel's clock."""

    counters: Mapping[tuple[str, str], int]
    seconds: float


def memory(*, root: str | Path = "/") -> Memory:
    """Count what ran out so far, to compare with after a death; ``root`` is the folder of sys/, proc/ and dev/."""
    root = Path(root)
    counters = {(_MACHINE, name): count for name, count in _counts(root / _VMSTAT).items() if name == "oom_kill"}
    for name, folder in _cgroups(root).items():
        for file, names in _COUNTERS.items():
            counters |= {(name, kind): count for kind, count in _counts(folder / file).items() if kind in names}
    return Memory(counters, time.monotonic())


def killed(before: Memory, pid: int | None, *, root: str | Path = "/") -> str:
    """Say what is known of a SIGKILL that came from outside: a sentence, then a line for each fact.

    ``before`` is what ``memory`` found when the test began, ``pid`` the dead process, which is supposed to have been in
    this process' cgroup.
    """
    root = Path(root)
    cgroups = _cgroups(root)
    now = memory(root=root).counters
    rose = {
        key: count - before.counters.get(key, 0) for key, count in now.items() if count > before.counters.get(key, 0)
    }
    log = _kernel_log(root / _KMSG, before.seconds - 1)  # the two clocks differ by a little
    named = [line for line in log or [] if pid is not None and re.search(rf"\b(pid=|process ){pid}\b", line)]
    own = next(iter(cgroups), "")  # an ancestor's count rises for other people's processes too
    if named:
        cause = "by the kernel, for lack of memory"
    elif rose.keys() & {(own, "oom_kill"), (own, "oom_group_kill")}:
        cause = "most likely by the kernel, for lack of memory"
    else:
        cause = "perhaps for lack of memory"
    lines = [f"killed from outside (SIGKILL), {cause}"]
    for group in (*cgroups, _MACHINE):
        facts = [f"{name} rose by {count}" for (where, name), count in rose.items() if where == group]
        sizes = _sizes(cgroups[group]) if group in cgroups else {}
        if facts or "limit" in sizes:
            lines.append(f"{group}: {', '.join([*facts, *(f'{what} {_gib(size)}' for what, size in sizes.items())])}")
    lines += [f"kernel log: {line}" for line in (named or log or [])[-_KERNEL_LINES:]]
    if not log and not any(name.startswith("oom") for _, name in rose):
        sources = {
            "the cgroup's memory counters": bool(cgroups),
            f"/{_VMSTAT}": (_MACHINE, "oom_kill") in now,
            f"/{_KMSG}": log is not None,
        }
        looked = [source if readable else f"{source} (not readable)" for source, readable in sources.items()]
        lines.append(f"no sign of it in {', '.join(looked)}")
    free = psutil.virtual_memory()
    return "\n".join([*lines, f"machine now: {_gib(free.available)} of {_gib(free.total)} available"])


def _cgroups(root: Path) -> dict[str, Path]:
    """This process' cgroup and those around it that count memory, by name: innermost first.

    A container may see its own cgroup as the root of the mount, by another path than the kernel's.
    """
    found = {}
    for line in text_or_nothing(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mount = "" if not controllers else "memory" if "memory" in controllers.split(",") else None
        if mount is None:
            continue
        inner = PurePosixPath(path)
        for cgroup in (inner, *inner.parents):
            folder = root / "sys/fs/cgroup" / mount / cgroup.relative_to("/")
            if any(text_or_nothing(folder / file) for file in _COUNTERS):
                found[f"cgroup {cgroup}"] = folder
    return found


def _counts(file: Path) -> dict[str, int]:
    """Numbers of a file of ``name number`` lines; of a lone number, the file's own name."""
    pairs = (line.split() for line in text_or_nothing(file).splitlines())
    return {"".join(pair[:-1]) or file.suffix[1:]: int(pair[-1]) for pair in pairs if pair and pair[-1].isdecimal()}


def _sizes(folder: Path) -> dict[str, int]:
    """Limit, use and highest use of a cgroup in bytes; no limit where there is none."""
    texts = {
        what: next(filter(None, (text_or_nothing(folder / name) for name in names)), "")
        for what, names in _SIZES.items()
    }
    return {what: int(text) for what, text in texts.items() if text.isdecimal() and int(text) < _NO_LIMIT}


def _kernel_log(file: Path, since: float) -> list[str] | None:
    """What the kernel logged about lack of memory after a time in seconds since boot; None if it cannot be read."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb", buffering=0) as log:
        try:
            records = b"".join(_records(log)).decode(errors="replace")
        except OSError:
            return None
    lines = re.findall(r"^\d+,\d+,(\d+),[^;\n]*;(.*)", records, flags=re.MULTILINE)
    return [text for stamp, text in lines if int(stamp) / 1e6 >= since and _OUT_OF_MEMORY.search(text)]


def _records(log: FileIO) -> Iterator[bytes]:
    """Every record of /dev/kmsg, which gives one a time and skips what was overwritten meanwhile."""
    while True:
        try:
            record = log.read(_RECORD)
        except BrokenPipeError:
            continue
        if not record:  # None: no more for now
            return
        yield record


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
