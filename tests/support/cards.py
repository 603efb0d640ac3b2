"""Cards that are not there: a stand-in for NVML in front of the whole plugin, up to the first touch of CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "fake_nvml" / "nvml.c"


@dataclass(frozen=True)
class Card:
    """What NVML says of a device; ``mig`` for a slice of the card before it."""

    name: str
    number: int = 0
    capability: str = "9.0"
    mib: int = 81559
    used: int = 600
    pid: int = 0
    mig: bool = False

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return f"{'MIG' if self.mig else 'GPU'}-{self.number:08x}-0000-0000-0000-000000000000"

    def line(self) -> str:
        """As the stand-in reads it."""
        fields = ["mig" if self.mig else "gpu", self.name, self.uuid, self.capability, self.mib, self.used, self.pid]
        return ",".join(map(str, fields))


def h200(number=0, **about):
    return Card("NVIDIA H200", number, mib=143771, **about)


def h100(number=0, **about):
    return Card("NVIDIA H100 80GB HBM3", number, **about)


def h20(number=0, **about):
    return Card("NVIDIA H20", number, mib=97871, **about)


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory) -> Iterator[Path]:
    """Folder of a libnvidia-ml.so.1 for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no C compiler: apt-get install gcc")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def two_cards(cards):
    """The option of a run on two H100s."""
    cards(h100(), h100(1))
    return "--hw=h100"


@pytest.fixture
def cards(fake_nvml, monkeypatch):
    """``cards(h200(), …)``: what is in this machine for all that this test starts."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml), prepend=os.pathsep)

    def cards(*devices, driver="580.159.04", hide=""):
        monkeypatch.setenv("FAKE_NVML_DEVICES", "\n".join(device.line() for device in devices))
        monkeypatch.setenv("FAKE_NVML_DRIVER", driver)
        monkeypatch.setenv("FAKE_NVML_HIDE", hide)

    return cards
