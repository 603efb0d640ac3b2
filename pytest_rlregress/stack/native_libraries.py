"""Find the native libraries that a process has loaded, by family, and their versions."""

from __future__ import annotations

import re
from pathlib import Path

# Native libraries that failures were traced to, by a regular expression for the path they are mapped from.
# Wheels repaired by auditwheel carry a hash in the name: libcudart-d0da41ae.so.11.0.
LIBRARIES = {
    "libcublas": r"/libcublas(-\w+)?\.so",
    "libcublasLt": r"/libcublasLt(-\w+)?\.so",
    "libcudart": r"/libcudart(-\w+)?\.so",
    "libcuda": r"/libcuda\.so",
    "libnccl": r"/libnccl(-\w+)?\.so",
    "libcudnn": r"/libcudnn\w*(-\w+)?\.so",
    "flash-attn": r"/(flash_attn|_vllm_fa)[^/]*\.so$",
    "flashinfer": r"/flashinfer.*\.so$",
}
# The wheels that carry some of them, where the file's own name has no more than the major version.
WHEELS = {
    "libcublas": "cublas",
    "libcublasLt": "cublas",
    "libcudart": "cuda_runtime",
    "libnccl": "nccl",
    "libcudnn": "cudnn",
}


def libraries_in(maps: str) -> dict[str, list[Path]]:
    """Return the native libraries in the text of a maps file, by family."""
    lines = (line.split(maxsplit=5) for line in maps.splitlines())
    files = sorted({parts[5].removesuffix(" (deleted)") for parts in lines if len(parts) == 6})
    found = {family: [Path(f) for f in files if re.search(regex, f)] for family, regex in LIBRARIES.items()}
    return {family: paths for family, paths in found.items() if paths}


def library_version(path: Path) -> str | None:
    """Return the version of a native library, where its file's name or its wheel has it."""
    name = re.fullmatch(r"(lib[A-Za-z]+)\w*(?:-\w+)?\.so\.(\d+(?:\.\d+)*)", path.name)
    if not name or "." in name[2]:
        return name[2] if name else None
    wheel = WHEELS.get(name[1])
    if wheel is None or len(path.parts) < 5 or path.parents[2].name != "nvidia":
        return None
    folders = path.parents[3].iterdir()  # site-packages/nvidia/cublas/lib/libcublas.so.12
    infos = [re.fullmatch(rf"nvidia_{wheel}(?:_cu\d+)?-(.+)\.dist-info", folder.name) for folder in folders]
    found = {info[1] for info in infos if info and info[1].split(".")[0] == name[2]}
    return found.pop() if len(found) == 1 else None
