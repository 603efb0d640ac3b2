"""Measures what the harness assumes of a GPU and nobody can see without one, a process for each measurement.

Prints plain lines, and writes all numbers as JSON where ``--json`` says. Exits with 1 where there is no CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SECONDS = 60  # for each
MEBIBYTE = 2**20
HOLD = """
import time, torch
held = torch.ones(2**31, dtype=torch.uint8, device="cuda")
print("holding", flush=True)
time.sleep(60)
"""


def main() -> int:
    """Run the measurements that are asked for; 1 if there is no CUDA or one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which ones (default: all): {', '.join(MEASUREMENTS)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    parser.add_argument("--here", choices=MEASUREMENTS, help="this one, in this process")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MEASUREMENTS):
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    if asked.here:
        print(json.dumps(MEASUREMENTS[asked.here]()))
        return 0
    found: dict[str, Any] = {}
    for name in ["cuda", *(name for name in asked.names or MEASUREMENTS if name != "cuda")]:
        found[name] = apart(name)
        if name == "cuda" and "error" in found[name]:
            print(f"no CUDA here: {found[name]['error']}")
            return 1
        print(f"{name}:")
        for key, value in found[name].items():
            print(f"  {key}: {value if isinstance(value, str) else json.dumps(value)}", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return any("error" in numbers for numbers in found.values())


def apart(name: str) -> dict[str, Any]:
    """Measure in a process of its own: what was found, or an ``error``."""
    command = [sys.executable, __file__, "--here", name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said, complaint = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return {"error": f"not done after {SECONDS} s"}
    if process.returncode:
        return {"error": (complaint.strip().splitlines() or [f"exit status {process.returncode}"])[-1]}
    return dict(json.loads(said.splitlines()[-1]))


def cuda() -> dict[str, Any]:
    """Ask torch about CUDA and the device."""
    import torch

    if not torch.version.cuda:
        sys.exit(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": torch.cuda.device_count()}


def nvml() -> dict[str, Any]:
    """Ask NVML, by way of the harness."""
    from pytest_rlregress.hardware import nvml

    machine = nvml.discover()
    return {
        "driver": machine.driver,
        "note": machine.note,
        "gpus": [f"{gpu.name}, {gpu.capability}, {gpu.memory_bytes}, {gpu.uuid}" for gpu in machine.gpus],
        "device files": sorted(map(str, Path("/dev").glob("nvidia*"))),
        "in use before": Device().used(),
    }


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


def descriptors() -> Counter[str]:
    """Open file descriptors of this process by what they point to."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of this listing
            found[re.sub(r":?\[\d+\]$", "", os.readlink(f"/proc/self/fd/{number}"))] += 1
    return found


def context() -> dict[str, Any]:
    """Count what a first CUDA context opens in a process: descriptors, threads; and torch's architectures."""
    import torch

    before, threads = descriptors(), len(os.listdir("/proc/self/task"))
    begun = time.monotonic()
    torch.zeros(1, device="cuda")
    seconds = time.monotonic() - begun
    new = descriptors() - before
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


def fork() -> dict[str, Any]:
    """Return whether a forked process can use CUDA, after its parent did the named."""
    import torch

    found = {}
    acts: dict[str, Callable[[], object]] = {
        "import torch": lambda: None,
        "torch.cuda.is_available()": torch.cuda.is_available,
        "torch.cuda.device_count()": torch.cuda.device_count,
        "NVML": Device,
        "torch.cuda.get_arch_list()": torch.cuda.get_arch_list,
        "a context": lambda: torch.zeros(1, device="cuda"),
    }
    for name, act in acts.items():
        try:
            act()
        except (Exception, SystemExit) as error:
            found[f"after {name}"] = f"not done: {error}"[:120]
            continue
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                said = f"works: {torch.zeros(1, device='cuda').item()}"
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"[:120]
            os.write(writing, said.splitlines()[0].encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            said = pipe.read().decode()
        found[f"after {name}"] = said or f"died: {os.waitpid(pid, 0)[1]}"
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


def warm_server() -> dict[str, Any]:
    """Return whether the warm server can be forked after all its imports: one thread, CUDA not initialised."""
    from pytest_rlregress.containment.client import WarmServer
    from pytest_rlregress.harness.protocol import WARM_MODULES, warm_modules

    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        server = WarmServer(warm_modules({*WARM_MODULES}), os.environ, Path(folder, "log"))
        try:
            said = server.ready(lambda line: None)
            return {"forkable": server.safe(lambda line: None), **said}
        finally:
            server.close()


MEASUREMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "cuda": cuda,
    "nvml": nvml,
    "context": context,
    "memory": memory,
    "fork": fork,
    "reclaim": reclaim,
    "warm-server": warm_server,
}

if __name__ == "__main__":
    sys.exit(main())
