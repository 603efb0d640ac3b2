"""Measures what the harness assumes of a GPU and nobody can see without one: ``card_measure.py NAME``.

Prints the numbers as JSON. card.sh gives each measurement a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

MEBIBYTE = 2**20
HOLD = """
import time, torch
held = torch.ones(2**31, dtype=torch.uint8, device="cuda")
print("holding", flush=True)
time.sleep(60)
"""


class Device:
    """The first GPU: memory in MiB that the driver counts."""

    def __init__(self) -> None:
        from pytest_rlregress.hardware import gpu_memory

        self._memory = gpu_memory
        self._nvml, devices = gpu_memory.open_nvml(visible_only=True)
        if not devices:
            sys.exit("NVML opens no GPU here: is /dev/nvidiactl there?")
        self._handle = devices[0][1]

    def used(self) -> int:
        """By anyone."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used) // MEBIBYTE

    def held(self, pid: int) -> int | None:
        """By a process; None where the driver does not list it."""
        held = self._memory.holders(self._nvml, self._handle).get(pid)
        return None if held is None else held // MEBIBYTE


def count_descriptors() -> Counter[str]:
    """Count the open file descriptors of this process by what they point to."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of this listing
            found[re.sub(r":?\[\d+\]$", "", os.readlink(f"/proc/self/fd/{number}"))] += 1
    return found


def context() -> dict[str, Any]:
    """Count what a first CUDA context opens in a process: descriptors, threads; and torch's architectures."""
    import torch

    before, threads = count_descriptors(), len(os.listdir("/proc/self/task"))
    begun = time.monotonic()
    torch.zeros(1, device="cuda")
    seconds = time.monotonic() - begun
    new = count_descriptors() - before
    torch.cuda.synchronize()
    return {
        "device": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "arch list": torch.cuda.get_arch_list(),
        "seconds": round(seconds, 2),
        "new descriptors": new.total(),
        "of these": dict(new.most_common()),
        "new threads": len(os.listdir("/proc/self/task")) - threads,
    }


def memory() -> dict[str, Any]:
    """MiB that the driver counts, for this process and on the device, after each first use of something."""
    import torch

    device, found = Device(), {}
    before = device.used()

    @contextmanager
    def counted(name: str) -> Iterator[None]:
        try:
            yield
            torch.cuda.synchronize()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:200]
        else:
            found[name] = {
                "process": device.held(os.getpid()),
                "device": device.used() - before,
                "torch": torch.cuda.memory_allocated() // MEBIBYTE,
            }

    with counted("context"):
        torch.zeros(1, device="cuda")
    with counted("cuBLAS"):
        torch.ones(256, 256, device="cuda", dtype=torch.bfloat16) @ torch.ones(
            256, 256, device="cuda", dtype=torch.bfloat16
        )
    with counted("Triton"):
        # Compiled by Inductor: a Triton kernel without one written out here.
        torch.compile(lambda one: one.sin() + 1)(torch.ones(1024, device="cuda"))
    query = torch.ones(1, 8, 64, 64, device="cuda", dtype=torch.bfloat16)
    with counted("torch's attention"):
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    with counted("FlashAttention 3"):
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        rows = query[0].transpose(0, 1).contiguous()
        ends = torch.tensor([0, 64], device="cuda", dtype=torch.int32)
        flash_attn_varlen_func(rows, rows, rows, 64, ends, 64, cu_seqlens_k=ends, causal=True, fa_version=3)
    return found


def reclaim() -> dict[str, Any]:
    """Seconds until the driver has taken back 2 GiB of a process that was killed."""
    device = Device()
    before = device.used()
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        held, listed = device.used() - before, device.held(process.pid)
        process.kill()
        begun = time.monotonic()
        while device.used() > before + 64 and time.monotonic() < begun + 30:
            time.sleep(0.01)
        return {"held": held, "of the process": listed, "seconds": round(time.monotonic() - begun, 2)}


MEASUREMENTS = {"context": context, "memory": memory, "reclaim": reclaim}

if __name__ == "__main__":
    print(json.dumps({sys.argv[1]: MEASUREMENTS[sys.argv[1]]()}))
