"""Explains a death: the native libraries that the process had loaded, and whether it was killed for lack of memory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import psutil
from packaging.utils import canonicalize_name

from pytest_rlregress import stack
from pytest_rlregress.util.files import text_or_nothing

_LINES = 15
_FOLDERS = 4  # of a path, from its end
# What tells which build of a component was loaded.
_CORES = {
    "torch": r"/torch/lib/libtorch_(cpu|cuda)\.so$",
    "vllm": r"/vllm/_C[^/]*\.so$",
    "ray": r"/ray/_raylet[^/]*\.so$",
}
# Counters of memory.events, and what the files of sizes are called here.
# https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
_COUNTED = ("oom_kill", "oom_group_kill", "oom", "max")
_SIZES = {"memory.max": "limit", "memory.current": "in use", "memory.peak": "at most"}
_MACHINE, _VMSTAT = "machine", "proc/vmstat"
#: How often memory ran out, by cgroup and counter.
Memory = Mapping[tuple[str, str], int]


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
    """Return the version that a file's name tells, or the metadata beside its package; empty where neither does."""
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


def memory(*, root: str | Path = "/") -> Memory:
    """Count how often memory ran out so far; ``root`` is the folder of sys/ and proc/."""
    root = Path(root)
    found = {(_MACHINE, name): count for name, count in _counts(root / _VMSTAT).items() if name == "oom_kill"}
    for group, folder in _cgroups(root).items():
        counts = _counts(folder / "memory.events")
        found |= {(group, name): count for name, count in counts.items() if name in _COUNTED}
    return found


def killed(before: Memory, *, root: str | Path = "/") -> str:
    """Explain a SIGKILL that came from outside: a sentence, then a line for each fact.

    ``before`` is what ``memory`` counted when the test began. The dead process is taken to have been in this process'
    cgroup.
    """
    root = Path(root)
    cgroups = _cgroups(root)
    now = memory(root=root)
    rose = {key: count - before.get(key, 0) for key, count in now.items() if count > before.get(key, 0)}
    own = next(iter(cgroups), "")  # an ancestor's count rises for other people's processes too
    likely = rose.keys() & {(own, "oom_kill"), (own, "oom_group_kill")}
    lines = [
        f"killed from outside (SIGKILL), {'most likely by the kernel,' if likely else 'perhaps'} for lack of memory"
    ]
    for group in (*cgroups, _MACHINE):
        facts = [f"{name} rose by {count}" for (where, name), count in rose.items() if where == group]
        sizes = _sizes(cgroups[group]) if group in cgroups else {}
        if facts or "limit" in sizes:
            lines.append(f"{group}: {', '.join([*facts, *(f'{name} {_gib(size)}' for name, size in sizes.items())])}")
    if not any(name.startswith("oom") for _, name in rose):
        sources = {"the cgroup's memory counters": bool(cgroups), f"/{_VMSTAT}": (_MACHINE, "oom_kill") in now}
        looked = [source if readable else f"{source} (not readable)" for source, readable in sources.items()]
        lines.append(f"no sign of it in {', '.join(looked)}")
    free = psutil.virtual_memory()
    return "\n".join([*lines, f"machine now: {_gib(free.available)} of {_gib(free.total)} available"])


def _cgroups(root: Path) -> dict[str, Path]:
    """Return this process' cgroup and those around it that count memory, by name: innermost first."""
    inner = PurePosixPath(text_or_nothing(root / "proc/self/cgroup").rpartition("0::")[2].strip() or "/")
    folders = {f"cgroup {one}": root / "sys/fs/cgroup" / one.relative_to("/") for one in (inner, *inner.parents)}
    return {name: folder for name, folder in folders.items() if text_or_nothing(folder / "memory.events")}


def _counts(file: Path) -> dict[str, int]:
    """Return the numbers of a file of ``name number`` lines."""
    pairs = (line.split() for line in text_or_nothing(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _sizes(folder: Path) -> dict[str, int]:
    """Return limit, use and highest use of a cgroup in bytes, without a limit where there is none."""
    texts = {name: text_or_nothing(folder / file).strip() for file, name in _SIZES.items()}
    return {name: int(text) for name, text in texts.items() if text.isdecimal()}


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
