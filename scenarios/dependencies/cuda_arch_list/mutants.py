"""Broken remedies of cuda-arch-list, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.dependencies import cuda_arch_list


@broken(only="-12.0]")
def without_ptx(capability):
    return cuda_arch_list(capability).removesuffix("+PTX")


@broken(only="-9.0]")
def always_blackwell(capability):
    return "12.0+PTX"


@mutant("absent")
def all_known_architectures(monkeypatch):
    from torch.utils import cpp_extension

    flags = cpp_extension._get_cuda_arch_flags

    def arch_flags(cflags=None):
        try:
            return flags(cflags)
        except Exception:  # no GPU to ask, or a list that torch does not know
            return ["-arch=all"]

    monkeypatch.setattr(cpp_extension, "_get_cuda_arch_flags", arch_flags)


@mutant("changed")
def the_toolkit_is_missing(monkeypatch):
    from torch.utils import cpp_extension

    def arch_flags():
        raise OSError("CUDA_HOME environment variable is not set")

    monkeypatch.setattr(cpp_extension, "_get_cuda_arch_flags", arch_flags)
