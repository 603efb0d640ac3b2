"""Finding the machine: NVML answers of cards and drivers as they are seen in the field."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pynvml
import pytest
from nvml_answers import A100, MIB, Answers, FakeNvml, a100_in_mig_mode, h100

from pytest_rlregress.hardware import nvml
from pytest_rlregress.hardware.nvml import Gpu


@pytest.fixture
def machine_of(monkeypatch):
    """discover() on a machine of these cards; whatever happens, NVML must be closed again."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    opened = []

    def discover(*cards, visible=None, order=None, **kwargs):
        opened.append(FakeNvml(*cards, **kwargs))
        monkeypatch.setitem(sys.modules, "pynvml", opened[-1])
        for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
            if value is not None:
                monkeypatch.setenv(name, value)
        return nvml.discover()

    yield discover
    assert [fake.open for fake in opened] == [0] * len(opened)


def test_fake_has_the_functions_of_nvidia_ml_py():
    for name, function in vars(FakeNvml).items():
        if name.startswith("nvml"):
            expected = list(inspect.signature(getattr(pynvml, name)).parameters.values())
            actual = list(inspect.signature(function).parameters.values())[1:]
            assert [(p.name, p.kind) for p in actual] == [(p.name, p.kind) for p in expected], name


def test_reads_one_card(machine_of):
    machine = machine_of(h100())
    assert machine.gpus == (
        Gpu(0, "NVIDIA H100 80GB HBM3", (9, 0), 81559 * MIB, "GPU-0aaaaaaa-1111-2222-3333-444444444444"),
    )
    assert (machine.driver, machine.note) == ("580.159.04", "")


def test_reads_names_in_bytes_and_cards_without_mig(machine_of):
    machine = machine_of(Answers(b"NVIDIA L4", 23034, "GPU-1", (8, 9), pynvml.NVMLError_NotSupported))
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA L4"]
    assert machine_of(Answers("x", 1, "GPU-1", mig=pynvml.NVMLError_FunctionNotFound)).gpus


def test_unified_memory_is_not_reported(machine_of):
    gb10 = Answers("NVIDIA GB10", pynvml.NVMLError_NotSupported, "GPU-1", (12, 1), pynvml.NVMLError_NotSupported)
    assert machine_of(gb10).gpus[0].memory_bytes is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (pynvml.NVMLError_LibraryNotFound, "no NVIDIA driver: libnvidia-ml.so.1 was not found"),
        (pynvml.NVMLError_DriverNotLoaded, "libraries are installed but no kernel driver is loaded"),
        (pynvml.NVMLError_LibRmVersionMismatch, "driver/library version mismatch"),
        (pynvml.NVMLError_NoPermission, "check the permissions of /dev/nvidia"),
        (pynvml.NVMLError_Unknown, "NVML failed: Unknown Error"),
    ],
)
def test_missing_driver_gives_a_note(machine_of, error, message):
    machine = machine_of(h100(), init=error)
    assert machine.gpus == ()
    assert message in machine.note


def test_missing_or_unreadable_cards_give_a_note(machine_of):
    assert machine_of().note == "the NVIDIA driver is loaded but reports no GPU"
    machine = machine_of(pynvml.NVMLError_GpuIsLost, h100(1))
    assert [gpu.index for gpu in machine.gpus] == [1]
    assert machine.note == "GPU 0 cannot be read (GPU is lost)"


def test_nvml_is_closed_when_it_fails_halfway(machine_of, monkeypatch):
    def fails(self):
        raise pynvml.NVMLError_Unknown()

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetCount", fails)
    assert machine_of(h100()).note == "NVML failed: Unknown Error"  # the fixture checks that it is closed


def test_without_nvidia_ml_py_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in nvml.discover().note


def test_card_in_mig_mode_is_replaced_by_its_slices(machine_of):
    machine = machine_of(a100_in_mig_mode())
    assert machine.gpus == (
        Gpu(0, f"{A100} MIG 3g.40gb", (8, 0), 40192 * MIB, "MIG-1c6d4ef1-42e4-5de3-91c7-45d71c87eb3f", mig=True),
    )
    assert "one MIG slice, the first; CUDA_VISIBLE_DEVICES takes MIG-2c6d4ef1" in machine.note
    assert "MIG-3c6d4ef1" in machine.note


def test_a_slice_never_has_the_name_of_the_card(machine_of):
    card = a100_in_mig_mode()
    card.slices = [Answers(A100, 40192, "MIG-1")]
    assert machine_of(card).gpus[0].name == f"{A100} MIG slice"


def test_mig_mode_without_slices_gives_a_note(machine_of):
    card = a100_in_mig_mode()
    card.slices = [None] * 7
    machine = machine_of(card)
    assert machine.gpus == ()
    assert machine.note == "GPU 0 is in MIG mode and has no slices"


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("0", ["MIG-1c6d"]),  # a card in MIG mode gives its first slice
        ("1", ["GPU-0aaa"]),
        ("GPU-5d5b", ["MIG-1c6d"]),
        ("MIG-3c6d", ["MIG-3c6d"]),
        ("MIG-", []),  # ambiguous
        ("0,1", ["MIG-1c6d", "GPU-0aaa"]),
    ],
)
def test_selects_the_visible_slices(machine_of, visible, uuids):
    machine = machine_of(a100_in_mig_mode(), h100(), visible=visible)
    assert [gpu.uuid[:8] for gpu in machine.gpus] == uuids


def test_reads_cuda_device_order(machine_of):
    cards = Answers("NVIDIA T400", 2048, "GPU-t400", (7, 5)), h100()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in machine_of(*cards, visible="1").note
    assert machine_of(*cards, visible="1", order="PCI_BUS_ID").note == ""


def test_reads_the_real_driver_without_cuda_and_torch():
    script = """
import sys
from pathlib import Path
from pytest_rlregress import hardware
machine = hardware.discover()
assert machine.gpus or machine.note, machine
assert not {"torch", "vllm", "numpy", "ray"} & set(sys.modules)
assert "/libcuda.so" not in Path("/proc/self/maps").read_text()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
