"""What the installed torch was built for: the cards that it has kernels for, and the toolkit that extensions need."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["missing_cuda_toolkit", "missing_kernels"]

_INDEX = "pip install torch --index-url https://download.pytorch.org/whl"


def missing_kernels(capability: tuple[int, int], arch_list: Sequence[str] | None = None) -> str | None:
    """Say that a build of torch has no kernels for GPUs of a compute capability.

    A binary (``sm_80``) runs on cards of its major version from its minor version on, and PTX (``compute_90``) on all
    later cards.

    Args:
        capability: (12, 0) for Blackwell workstations, as ``torch.cuda.get_device_capability()``.
        arch_list: As ``torch.cuda.get_arch_list()``, which needs no GPU; None for the installed torch's.

    Returns:
        None if one of the architectures runs there, or the list is empty, as in a build for CPUs; else one sentence
        with what to install.
    """
    if arch_list is None:
        import torch

        arch_list = torch.cuda.get_arch_list()
    codes = re.findall(r"(sm|compute)_(\d+)(\d)([af]?)\b", " ".join(arch_list))
    found = [(kind, (int(major), int(minor)), variant) for kind, major, minor, variant in codes]
    if not found or any(_runs(kind, built, variant, capability) for kind, built, variant in found):
        return None
    builds = [built for _, built, _ in found]
    if capability > max(builds):
        instead = f"install a torch built for CUDA 12.8 or later ({_INDEX}/cu128)"
    else:
        instead = f"install a torch built for an earlier CUDA ({_INDEX}/cu126)"
    known = ", ".join("{}.{}".format(*built) for built in sorted(set(builds)))
    wanted = "{}.{}".format(*capability)
    return f"torch has kernels for compute capability {known} and none for {wanted}, which the card has: {instead}."


def _runs(kind: str, built: tuple[int, int], variant: str, capability: tuple[int, int]) -> bool:
    if variant == "a":  # for this architecture alone
        return built == capability
    if kind == "compute" and not variant:
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def missing_cuda_toolkit(home: str | None = None, cuda: str | None = None) -> str | None:
    """Say what keeps CUDA extensions from being built beside a torch.

    Args:
        home: The toolkit's folder, with ``bin/nvcc``; None for the one that the installed torch finds.
        cuda: The CUDA that torch was built for, as ``torch.version.cuda``; None for the installed torch's.

    Returns:
        None if nvcc is there and its major release is torch's, else one sentence with what to do.
    """
    if home is None or cuda is None:
        import torch
        from torch.utils import cpp_extension

        cuda = cuda or torch.version.cuda
        home = home or cpp_extension.CUDA_HOME
    if cuda is None:
        return (
            "torch is built for CPUs and takes no toolkit, whatever CUDA_HOME says: install a torch built for CUDA, "
            "in the environment where the extension is built (pip install --no-build-isolation)."
        )
    toolkit = f"the CUDA toolkit {cuda}"
    instead = f"install {toolkit}, or take a wheel of the extension that is built for this torch"
    if not home:
        return f"No CUDA toolkit is found in CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda: {instead}."
    nvcc = Path(home, "bin", "nvcc.exe" if os.name == "nt" else "nvcc")
    if not nvcc.exists():
        return f"{nvcc} isn't there, so CUDA_HOME={home} isn't a toolkit: {instead}."
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.\d+", said)
    if release and release[1] != cuda.partition(".")[0]:
        return f"nvcc in {home} is of CUDA {release[0].removeprefix('release ')} and torch of CUDA {cuda}: {instead}."
    return None
