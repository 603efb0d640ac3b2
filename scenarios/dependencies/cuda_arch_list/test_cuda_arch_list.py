import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.stack.lazy import torch


def flags(monkeypatch, arch_list=None):
    """What torch passes to nvcc, with TORCH_CUDA_ARCH_LIST set to ``arch_list`` or unset."""
    from torch.utils.cpp_extension import _get_cuda_arch_flags

    if arch_list is None:
        monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    else:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", arch_list)
    return _get_cuda_arch_flags()


def flags_of(capability):
    """The binary for these GPUs, and PTX for those to come."""
    number = "{}{}".format(*capability)
    return {f"-gencode=arch=compute_{number},code={kind}_{number}" for kind in ("sm", "compute")}


@pytest.mark.reproduces("cuda-arch-list")
@pytest.mark.isolated
def test_no_list_and_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    flags(monkeypatch)


@pytest.mark.reproduces("cuda-arch-list")
@pytest.mark.parametrize("arch_list", ["13.7", "120+PTX"], ids=["unknown", "as-nvcc-writes-it"])
def test_a_list_that_torch_does_not_know(monkeypatch, arch_list):
    flags(monkeypatch, arch_list)


@pytest.mark.guards("cuda-arch-list")
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)], ids="{0[0]}.{0[1]}".format)
def test_flags_without_gpu(subject, monkeypatch, capability):
    assert set(flags(monkeypatch, subject(capability))) == flags_of(capability)


@pytest.mark.guards("cuda-arch-list")
@pytest.mark.hw(capability=">=7.5")
@pytest.mark.isolated
def test_flags_for_this_gpu(subject, monkeypatch):
    capability = torch.cuda.get_device_capability()
    with act():
        assert set(flags(monkeypatch, subject(capability))) == flags_of(capability) == set(flags(monkeypatch))
