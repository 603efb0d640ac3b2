"""What a dead process leaves: on this machine as it is, and on a recorded one."""

from __future__ import annotations

import importlib.util
import mmap
import signal
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from pytest_rlregress.containment.post_mortem import killed, libraries, memory

needs_proc = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")


@pytest.fixture
def mapped():
    """Map files into this process and return the text of its maps."""
    maps = []

    def mapped(*files):
        for file in files:
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"\x7fELF")
            with file.open("rb") as opened:
                maps.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        return Path("/proc/self/maps").read_text()

    yield mapped
    for each in maps:
        each.close()


@needs_proc
def test_two_copies_of_a_library(mapped, tmp_path):
    site, system = tmp_path / "site-packages", tmp_path / "cuda-12.1"
    (site / "nvidia_cublas_cu12-12.4.5.8.dist-info").mkdir(parents=True)
    cublas = site / "nvidia" / "cublas" / "lib"
    old = system / "lib64" / "libcublas.so.12.1.3.1"
    lines = libraries(mapped(cublas / "libcublas.so.12", cublas / "libcublasLt.so.12", old)).splitlines()
    assert "libcublas 12.4.5.8  …/nvidia/cublas/lib/libcublas.so.12" in lines
    assert "libcublasLt 12.4.5.8  …/nvidia/cublas/lib/libcublasLt.so.12" in lines
    assert any(line.startswith("libcublas 12.1.3.1  …/") and line.endswith(old.name) for line in lines)
    assert lines[-1].endswith(" other native libraries")


@needs_proc
def test_the_installed_torch(mapped):
    torch = importlib.util.find_spec("torch")
    if torch is None:
        pytest.skip("needs torch")
    file = Path(torch.submodule_search_locations[0]) / "lib" / "libtorch_cpu.so"
    assert f"torch {metadata.version('torch')}  …/site-packages/torch/lib/libtorch_cpu.so" in libraries(mapped(file))


@needs_proc
def test_many_libraries_stay_short(mapped, tmp_path):
    beside = [tmp_path / "cudnn" / f"libcudnn_{name}.so.9" for name in ("ops", "cnn", "graph")]
    copies = [tmp_path / f"copy{n:02}" / "flashinfer_kernels.so" for n in range(20)]
    lines = libraries(mapped(*beside, *copies)).splitlines()
    assert len(lines) == 15
    assert any(line.endswith("libcudnn_cnn.so.9 and 2 more beside it") for line in lines)
    assert lines[-2].endswith(" more of these families")


def test_nothing_that_matters():
    assert libraries("7f00-7f01 r-xp 00000000 fe:00 26723    /usr/lib/x86_64-linux-gnu/libc.so.6\n") == ""


def test_a_kill_on_this_machine():
    before = memory()
    with subprocess.Popen(["sleep", "99"]) as process:
        process.send_signal(signal.SIGKILL)
    text = killed(before)
    assert text.startswith("killed from outside (SIGKILL), perhaps for lack of memory\n")
    assert "machine now: " in text.splitlines()[-1]


def record(root, files):
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_cgroup_of_version_2(tmp_path):
    pod, inner = "sys/fs/cgroup/kubepods/pod1", "sys/fs/cgroup/kubepods/pod1/trainer"
    events = "low 0\nhigh 0\nmax {0}\noom {1}\noom_kill {1}\noom_group_kill 0\n"
    record(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod1/trainer\n",
            "proc/vmstat": "nr_free_pages 1\noom_kill 6\n",
            f"{pod}/memory.events": events.format(0, 2),
            f"{pod}/memory.max": "max\n",
            f"{inner}/memory.events": events.format(3, 2),
            f"{inner}/memory.max": f"{8 << 30}\n",
            f"{inner}/memory.current": f"{1 << 30}\n",
            f"{inner}/memory.peak": f"{8 << 30}\n",
        },
    )
    before = memory(root=tmp_path)
    same = killed(before, root=tmp_path).splitlines()
    assert same[:3] == [
        "killed from outside (SIGKILL), perhaps for lack of memory",
        "cgroup /kubepods/pod1/trainer: limit 8.0 GiB, in use 1.0 GiB, at most 8.0 GiB",
        "no sign of it in the cgroup's memory counters, /proc/vmstat",
    ]
    record(tmp_path, {f"{pod}/memory.events": events.format(0, 3), "proc/vmstat": "oom_kill 7\n"})
    neighbour = killed(before, root=tmp_path).splitlines()
    assert neighbour[0] == "killed from outside (SIGKILL), perhaps for lack of memory"
    assert "cgroup /kubepods/pod1: oom rose by 1, oom_kill rose by 1" in neighbour
    record(tmp_path, {f"{inner}/memory.events": events.format(40, 3)})
    assert killed(before, root=tmp_path).splitlines()[:-1] == [
        "killed from outside (SIGKILL), most likely by the kernel, for lack of memory",
        "cgroup /kubepods/pod1/trainer: max rose by 37, oom rose by 1, oom_kill rose by 1, "
        "limit 8.0 GiB, in use 1.0 GiB, at most 8.0 GiB",
        "cgroup /kubepods/pod1: oom rose by 1, oom_kill rose by 1",
        "machine: oom_kill rose by 1",
    ]


def test_nothing_readable(tmp_path):
    lines = killed(memory(root=tmp_path), root=tmp_path).splitlines()
    assert lines[:-1] == [
        "killed from outside (SIGKILL), perhaps for lack of memory",
        "no sign of it in the cgroup's memory counters (not readable), /proc/vmstat (not readable)",
    ]
