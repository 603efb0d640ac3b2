"""Find the GPUs that a CUDA process would see, through NVML: CUDA itself is never initialised."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One device as CUDA would see it: a whole card, or a MIG slice of one.

    Attributes:
        index: Of the physical card, in NVML's order (PCI bus).
        name: As NVML prints it; a slice's name always says MIG.
        memory_bytes: None where the driver does not say (unified memory).
    """

    index: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int | None
    uuid: str
    mig: bool = False


@dataclass(frozen=True)
class Machine:
    """The visible GPUs, the driver's version, and a note on anything missing, hidden or ambiguous."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    note: str = ""


Visible = tuple[tuple[Gpu, ...], list[str]]  # and notes


@dataclass(frozen=True)
class Card:
    """A physical card: what CUDA can use of it is the card, its MIG slices, or nothing."""

    uuid: str
    devices: tuple[Gpu, ...]


# What went wrong, by the name of nvidia-ml-py's exception, and what to do about it.
NO_NVML = {
    "NVMLError_LibraryNotFound": "no NVIDIA driver: libnvidia-ml.so.1 was not found (in a container: was it "
    "started with its GPUs, as with --gpus all?)",
    "NVMLError_DriverNotLoaded": "the NVIDIA libraries are installed but no kernel driver is loaded",
    "NVMLError_LibRmVersionMismatch": "driver/library version mismatch: the NVIDIA libraries were changed "
    "under a running kernel driver; reload the driver or reboot",
    "NVMLError_NoPermission": "the NVIDIA driver refuses this user: check the permissions of /dev/nvidia*",
}


def discover() -> Machine:
    """Ask NVML for the machine and apply CUDA_VISIBLE_DEVICES; a missing or broken driver is a note."""
    try:
        import pynvml
    except ImportError:
        return Machine(note="nvidia-ml-py is not installed, so no GPU can be found: pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
        try:
            driver = text(pynvml.nvmlSystemGetDriverVersion())
            cards, notes = list_cards(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Machine(note=NO_NVML.get(type(error).__name__, f"NVML failed: {error}"))
    if not cards:
        return Machine(driver=driver, note="the NVIDIA driver is loaded but reports no GPU")
    gpus, more = visible(cards, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"))
    return Machine(gpus, driver, "; ".join(notes + more))


def text(value: str | bytes) -> str:
    """Decode what older releases of nvidia-ml-py return as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def list_cards(nvml: Any) -> tuple[list[Card], list[str]]:
    """Return every card in NVML's order, with notes on those that cannot be used."""
    cards, notes = [], []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            card = Card(text(nvml.nvmlDeviceGetUUID(handle)), devices_of(nvml, handle, index))
        except nvml.NVMLError as error:  # lost from the bus, or not ours to open
            card = Card("", ())
            notes.append(f"GPU {index} cannot be read ({error})")
        else:
            if not card.devices:
                notes.append(f"GPU {index} is in MIG mode and has no slices")
        cards.append(card)
    return cards, notes


def devices_of(nvml: Any, handle: Any, index: int) -> tuple[Gpu, ...]:
    """Return the card itself or, in MIG mode, its slices: CUDA cannot use the whole of a card in that mode."""
    name = text(nvml.nvmlDeviceGetName(handle))
    # Asked of the card, because a slice's handle is not accepted everywhere; it is the same for both.
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        mig, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):  # a card, or a driver, without MIG
        mig = 0
    if not mig:
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        return (Gpu(index, name, (major, minor), memory_of(nvml, handle), uuid),)
    slices = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError_NotFound:  # the count is of places, most of them empty
            continue
        called = text(nvml.nvmlDeviceGetName(part))
        called = called if "MIG" in called else f"{name} MIG slice"
        uuid = text(nvml.nvmlDeviceGetUUID(part))
        slices.append(Gpu(index, called, (major, minor), memory_of(nvml, part), uuid, mig=True))
    return tuple(slices)


def memory_of(nvml: Any, handle: Any) -> int | None:
    """Return the total memory in bytes; None for unified memory (GB10, Jetson), where NVML has no answer."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError_NotSupported:
        return None


def visible(cards: Sequence[Card], wanted: str | None, order: str | None) -> Visible:
    """Apply CUDA_VISIBLE_DEVICES (``wanted``) and CUDA_DEVICE_ORDER (``order``) as CUDA does, with notes.

    Indices or unambiguous beginnings of UUIDs, of one kind; the first invalid entry ends the list, a repeated
    one empties it. Source: the CUDA programming guide, and torch.cuda._parse_visible_devices, which imitates
    the driver.
    """
    every = [gpu for card in cards for gpu in card.devices]
    if wanted is None:
        return keep_one_slice(every)
    setting = f"CUDA_VISIBLE_DEVICES={wanted!r}"
    if not wanted.strip():
        return (), [f"{setting} hides all {len(every)} GPUs"]
    chosen: list[Gpu] = []
    notes = []
    kind = next((prefix for prefix in ("GPU-", "MIG-") if wanted.startswith(prefix)), "")
    for entry in wanted.split(","):
        gpu = find_device(cards, every, entry, kind)
        if gpu is None:
            notes.append(f"{setting}: {entry!r} is none of the {len(every)} GPUs, and CUDA reads no further")
            break
        if gpu in chosen:
            return (), [f"{setting} names {entry!r} twice, for which CUDA shows no GPU at all"]
        chosen.append(gpu)
    if not kind and chosen and len({gpu.name for gpu in every}) > 1 and order != "PCI_BUS_ID":
        notes.append(
            f"{setting} counts in CUDA's order (fastest first), this listing in PCI bus order, and the cards "
            "differ: set CUDA_DEVICE_ORDER=PCI_BUS_ID or name a UUID"
        )
    gpus, more = keep_one_slice(chosen)
    return gpus, notes + more


def find_device(cards: Sequence[Card], every: Sequence[Gpu], entry: str, kind: str) -> Gpu | None:
    """Return the device that an entry of CUDA_VISIBLE_DEVICES names; of a card in MIG mode, its first slice."""
    if kind == "MIG-":
        slices = [gpu for gpu in every if gpu.uuid.startswith(entry)]
        return slices[0] if len(slices) == 1 and entry.startswith(kind) else None
    if kind == "GPU-":
        named = [card for card in cards if card.uuid.startswith(entry) and entry.startswith(kind)]
    else:
        number = re.match(r"\s*\+?\d+", entry)
        named = list(cards[int(number[0]) :][:1]) if number else []
    return named[0].devices[0] if len(named) == 1 and named[0].devices else None


def keep_one_slice(gpus: Sequence[Gpu]) -> Visible:
    """Keep the first of several MIG slices, with a note: CUDA gives a process only one."""
    if len(gpus) < 2 or not all(gpu.mig for gpu in gpus):
        return tuple(gpus), []
    others = ", ".join(gpu.uuid for gpu in gpus[1:])
    return (gpus[0],), [f"CUDA shows a process one MIG slice, the first; CUDA_VISIBLE_DEVICES takes {others}"]
