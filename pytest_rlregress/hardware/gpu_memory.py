"""Memory on GPUs, by who holds it: what torch's allocator has given out, and what the driver counts of a process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_rlregress.hardware import nvml

# cuBLAS' workspaces count as allocated by torch and stay: up to 32 MiB for a stream on Hopper.
ALLOCATED_BYTES = 64 * 2**20
# Kernels are loaded at first use and stay, which is why torch's own leak check (CudaMemoryLeakCheck) does not believe
# the driver alone; the CUDA context itself comes with the first use and stays too: half a GiB, and more with NCCL and
# FlashAttention. Nobody has measured all of that together, so the limit is wide; requirements/card.md says how to.
LOADED_BYTES, CONTEXT_BYTES = 256 * 2**20, 2 * 2**30

#: Seconds until memory is missed: the driver takes it back some time after it was freed or its process died.
RECLAIM_SECONDS = 10.0
LOOK_SECONDS = 0.05
_STILL_LOOKS = 5  # so many looks in a row with the same memory in use: it stands still
#: The device file that is open where CUDA is initialised.
CUDA = "/dev/nvidia-uvm"
_NVIDIA = Path("/dev/nvidiactl")  # there with a driver


def wait_for_gpu_memory(pids: Collection[int], seconds: float = RECLAIM_SECONDS) -> list[str]:
    """Wait until the driver lists none of ``pids``, which are dead, on any GPU; what remains, in words.

    Where it lists no process at all, as in a container that hides their ids, wait until what is used falls no more.
    Returns at once where there is no driver, or where it lists processes and none of ``pids``.
    """
    driver, devices = open_nvml(visible_only=False)
    if driver is None:
        return []
    deadline = time.monotonic() + seconds
    looks: list[list[int]] = []
    try:
        while True:
            held = [(label, holders(driver, handle)) for label, handle in devices]
            left = [f"pid {pid} holds {size_of(on[pid])} on {label}" for label, on in held for pid in pids if pid in on]
            listed = any(on for _, on in held)
            looks.append([used(driver, handle) for _, handle in devices])
            stands_still = len(looks) >= _STILL_LOOKS and all(one == looks[-1] for one in looks[-_STILL_LOOKS:])
            if time.monotonic() > deadline or (not left and (listed or stands_still)):
                return left
            time.sleep(LOOK_SECONDS)
    finally:
        driver.nvmlShutdown()


def used(driver: Any, device: Any) -> int:
    """Bytes in use on a device by anyone; 0 where the driver does not say."""
    try:
        return int(driver.nvmlDeviceGetMemoryInfo(device).used)
    except driver.NVMLError:
        return 0


def allocated() -> dict[tuple[str, str], int]:
    """Bytes in living tensors by CUDA device, if torch uses any."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {("torch", f"cuda:{index}"): int(cuda.memory_allocated(index)) for index in range(cuda.device_count())}


def empty_cache() -> None:
    """Let torch give back what it holds for later, if it uses CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        with suppress(RuntimeError):  # after an error on the device, which has long been raised elsewhere
            cuda.empty_cache()


def open_nvml(visible_only: bool) -> tuple[Any, list[tuple[str, Any]]]:
    """NVML and a handle on each GPU, by how it is called; None and none where there is no driver."""
    if not _NVIDIA.exists():
        return None, []
    try:
        import pynvml
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
        cards, _ = nvml.list_cards(pynvml)
        gpus = [gpu for card in cards for gpu in card.devices]
        if visible_only:
            chosen, order = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER")
            gpus = list(nvml.visible(cards, chosen, order)[0])
        labels = [f"GPU {gpu.index}" + (f" ({gpu.uuid})" if gpu.mig else "") for gpu in gpus]
        return pynvml, [
            (label, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)) for label, gpu in zip(labels, gpus, strict=True)
        ]
    except pynvml.NVMLError:
        return None, []


def holders(driver: Any, device: Any) -> dict[int, int]:
    """Bytes on a device by process; 0 where the driver does not say how many."""
    try:
        return {p.pid: p.usedGpuMemory or 0 for p in driver.nvmlDeviceGetComputeRunningProcesses(device)}
    except driver.NVMLError:
        return {}


def size_of(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
