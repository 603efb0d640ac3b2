"""Explain a death: a text of all that is known, the native libraries that were mapped, whether memory ran out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from pytest_rlregress.containment import Death
from pytest_rlregress.util.files import text_or_nothing

_LINES = 15
_FOLDERS = 4  # of a path, from its end
# Libraries that failures were traced to: a regular expression for the file, and one for the wheel that carries it.
# Wheels repaired by auditwheel carry a hash in a file's name: libcudart-d0da41ae.so.11.0.
_LIBRARIES = {
    "torch": (r"/torch/lib/libtorch_(cpu|cuda)\.so$", "torch"),
    "vllm": (r"/vllm/_C[^/]*\.so$", "vllm(?:_cpu)?"),
    "ray": (r"/ray/_raylet[^/]*\.so$", "ray"),
    "libcublas": (r"/libcublas(-\w+)?\.so", r"nvidia_cublas(?:_cu\d+)?"),
    "libcublasLt": (r"/libcublasLt(-\w+)?\.so", r"nvidia_cublas(?:_cu\d+)?"),
    "libcudart": (r"/libcudart(-\w+)?\.so", r"nvidia_cuda_runtime(?:_cu\d+)?"),
    "libcuda": (r"/libcuda\.so", ""),
    "libnccl": (r"/libnccl(-\w+)?\.so", r"nvidia_nccl(?:_cu\d+)?"),
    "libcudnn": (r"/libcudnn\w*(-\w+)?\.so", r"nvidia_cudnn(?:_cu\d+)?"),
    "flash-attn": (r"/(flash_attn|_vllm_fa)[^/]*\.so$", ""),
    "flashinfer": (r"/flashinfer.*\.so$", ""),
}
#: Lines of a dead process' output that stand in the text on its death.
LAST_LINES = 10
# What runs the test, in faulthandler's stacks and in py-spy's.
_RUNNER = re.compile(
    r"(?:^.*(?:/_pytest/|/pluggy/|/pytest_rlregress/containment/|File \"<string>\""
    r"|\((?:_pytest|pluggy|pytest_rlregress/containment)/).*\n)+",
    re.MULTILINE,
)
# Where faulthandler begins: for a fault, for a thread of a process that hangs.
_STACK = re.compile(r"^(Fatal Python error: |Thread 0x|Current thread 0x)", re.MULTILINE)


def describe_death(death: Death) -> tuple[str, str]:
    """Describe a death in one text, with the last lines of its output; return the whole output beside it."""
    found = _STACK.search(death.log)
    output, stack = (death.log[: found.start()], death.log[found.start() :]) if found else (death.log, "")
    last = "\n".join(output.splitlines()[-LAST_LINES:])  # such as what abort() was called for
    sections = [*([("last output", last)] if last else []), *death.sections]
    text = "\n".join(part for part in (death.message, without_runner(stack)) if part)
    return "\n".join([text, *(titled(title, section) for title, section in sections)]), output


def titled(title: str, text: str) -> str:
    """Return a text under a line with its title, without the frames of pytest."""
    return f"{f' {title} ':-^80}\n{without_runner(text)}"


def without_runner(stacks: str) -> str:
    """Leave out the frames of pytest, which are the same in every test's stacks."""
    return _RUNNER.sub("        … pytest\n", f"{stacks.rstrip()}\n").rstrip()


def libraries(maps: str) -> str:
    """Return the native libraries that matter, from the text of a /proc/PID/maps, at most 15 lines: version and path.

    Libraries of one family, version and folder share a line: two lines of one family are two copies in one process.
    The last line counts all others. Empty if none that matters was loaded.
    """
    native = _native_files(maps)
    copies = find_copies(maps)
    if not copies:
        return ""
    lines = []
    for (family, version, _), paths in copies.items():
        more = f" and {len(paths) - 1} more beside it" if len(paths) > 1 else ""
        parts = paths[0].parts
        short = str(paths[0]) if len(parts) <= _FOLDERS + 1 else f"…/{'/'.join(parts[-_FOLDERS:])}"
        lines.append(f"{family} {version or '(version unknown)'}  {short}{more}")
    if len(lines) >= _LINES:
        lines[_LINES - 2 :] = [f"{len(lines) - _LINES + 2} more of these families"]
    others = len(native) - sum(map(len, copies.values()))
    return "\n".join([*lines, f"{others} other native libraries"])


def find_copies(maps: str) -> dict[tuple[str, str, Path], list[Path]]:
    """Find the native libraries that matter in the text of a /proc/PID/maps.

    Returns:
        The files by family such as ``libcublasLt``, version ("" if unknown) and folder.
    """
    native = _native_files(maps)
    copies: dict[tuple[str, str, Path], list[Path]] = {}
    for family, (file, wheel) in _LIBRARIES.items():
        for path in (Path(name) for name in native if re.search(file, name)):
            copies.setdefault((family, library_version(path, wheel), path.parent), []).append(path)
    return copies


def _native_files(maps: str) -> list[str]:
    found = re.findall(r"(/.*\.so(?:\.[\d.]+)?)(?: \(deleted\))?$", maps, flags=re.MULTILINE)
    return sorted(set(found))


def library_version(file: Path, wheel: str) -> str:
    """Return the version that a library's name tells, or the metadata of its wheel; empty where neither does."""
    number = next(iter(re.findall(r"\.so\.(\d+(?:\.\d+)*)$", file.name)), "")
    if "." in number or not wheel:
        return number if "." in number else ""
    for folder in file.parents[1:4]:  # a wheel's own folder has one or two more below it
        infos = [re.fullmatch(rf"{wheel}-(.+)\.dist-info", info.name) for info in folder.glob("*.dist-info")]
        found = {info[1] for info in infos if info and number in ("", info[1].partition(".")[0])}
        if found:
            return found.pop() if len(found) == 1 else ""
    return ""


def count_kills(*, root: Path = Path("/")) -> dict[str, int]:
    """Count the processes that the kernel killed for lack of memory, in this process' cgroup and on the machine.

    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files; ``root`` is the folder of sys/ and proc/.
    """
    texts = {
        "cgroup": text_or_nothing(_cgroup(root) / "memory.events"),
        "machine": text_or_nothing(root / "proc/vmstat"),
    }
    counts = {where: re.search(r"^oom_kill (\d+)$", text, re.MULTILINE) for where, text in texts.items()}
    return {where: int(count[1]) for where, count in counts.items() if count}


def explain_kill(before: Mapping[str, int], *, root: Path = Path("/")) -> str:
    """Explain a SIGKILL that came from outside: a sentence, then a line for each fact.

    ``before`` is what ``count_kills`` returned when the test began. The dead process is taken to have been in this
    process' cgroup.
    """
    now = count_kills(root=root)
    rose = {where: now[where] - before.get(where, 0) for where in now if now[where] > before.get(where, 0)}
    likely = "most likely by the kernel," if "cgroup" in rose else "perhaps"
    lines = [f"killed from outside (SIGKILL), {likely} for lack of memory"]
    lines += [f"{where}: oom_kill rose by {count}" for where, count in rose.items()]
    if (limit := text_or_nothing(_cgroup(root) / "memory.max")).isdecimal():
        lines.append(f"cgroup: limit {_gib(int(limit))}")
    free = psutil.virtual_memory()
    return "\n".join([*lines, f"machine now: {_gib(free.available)} of {_gib(free.total)} available"])


def _cgroup(root: Path) -> Path:
    name = text_or_nothing(root / "proc/self/cgroup").rpartition("0::")[2].strip()
    return root / "sys/fs/cgroup" / name.lstrip("/")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
