"""Explain a death: the native libraries that the process had mapped, and whether memory ran out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import psutil

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


def libraries(maps: str) -> str:
    """Return the native libraries that matter, from the text of a /proc/PID/maps, at most 15 lines: version and path.

    Libraries of one family, version and folder share a line: two lines of one family are two copies in one process.
    The last line counts all others. Empty if none that matters was loaded.
    """
    native = sorted(set(re.findall(r"(/.*\.so(?:\.[\d.]+)?)(?: \(deleted\))?$", maps, flags=re.MULTILINE)))
    copies: dict[tuple[str, str, Path], list[Path]] = {}
    for family, (file, wheel) in _LIBRARIES.items():
        for path in (Path(name) for name in native if re.search(file, name)):
            copies.setdefault((family, library_version(path, wheel), path.parent), []).append(path)
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
