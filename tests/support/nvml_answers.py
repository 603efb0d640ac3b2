"""NVML's answers in Python: recorded ones of cards and drivers as they are seen in the field."""

from __future__ import annotations

import types
from dataclasses import dataclass, field

import pynvml

MIB = 2**20


@dataclass
class Answers:
    """What NVML says about one handle: a card or a MIG slice."""

    name: str | bytes
    mib: int | type[Exception]
    uuid: str
    capability: tuple[int, int] = (9, 0)
    mig: list[int] | type[Exception] = field(default_factory=lambda: [0, 0])
    slices: list[Answers | None] = field(default_factory=list)


A100 = "NVIDIA A100-SXM4-80GB"


def h100(n: int = 0) -> Answers:
    return Answers("NVIDIA H100 80GB HBM3", 81559, f"GPU-{n}aaaaaaa-1111-2222-3333-444444444444")


def a100_in_mig_mode() -> Answers:
    # Room for seven slices, three of them in use.
    slices = [Answers(f"{A100} MIG 3g.40gb", 40192, f"MIG-{n}c6d4ef1-42e4-5de3-91c7-45d71c87eb3f") for n in (1, 2)]
    slices.append(Answers(f"{A100} MIG 1g.10gb", 9728, "MIG-3c6d4ef1-42e4-5de3-91c7-45d71c87eb3f"))
    return Answers(
        A100,
        81920,
        "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
        (8, 0),
        [1, 1],
        [slices[0], None, slices[1], None, slices[2], None, None],
    )


class FakeNvml(types.ModuleType):
    """nvidia-ml-py's functions over recorded answers; its error classes are the real ones."""

    def __init__(self, *cards: Answers | type[Exception], init: type[Exception] | None = None) -> None:
        super().__init__("pynvml")
        self.cards, self.init, self.open = cards, init, 0

    def __getattr__(self, name: str) -> object:
        if name.startswith("NVMLError"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None:
        if self.init:
            raise self.init()
        self.open += 1

    def nvmlShutdown(self) -> None:
        if not self.open:
            raise pynvml.NVMLError_Uninitialized()
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Answers:
        return answer_or_raise(self.cards[index])

    def nvmlDeviceGetName(self, handle: Answers) -> str | bytes:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: Answers) -> str:
        return handle.uuid

    def nvmlDeviceGetCudaComputeCapability(self, handle: Answers) -> tuple[int, int]:
        if handle.uuid.startswith("MIG-"):
            raise pynvml.NVMLError_InvalidArgument()
        return handle.capability

    def nvmlDeviceGetMemoryInfo(self, handle: Answers, version: int | None = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(total=answer_or_raise(handle.mib) * MIB)

    def nvmlDeviceGetMigMode(self, device: Answers) -> list[int]:
        return answer_or_raise(device.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Answers) -> int:
        return len(device.slices)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Answers, index: int) -> Answers:
        if device.slices[index] is None:
            raise pynvml.NVMLError_NotFound()
        return device.slices[index]


def answer_or_raise(answer):
    if isinstance(answer, type):
        raise answer()
    return answer
