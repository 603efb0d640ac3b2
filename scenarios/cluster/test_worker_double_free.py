"""A Ray worker frees memory twice while CUDA is looked for: Ray's exception names no signal, the worker's log does."""

from __future__ import annotations

import os
import sys

import pytest

FREE_TWICE = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
block = libc.malloc(64)
libc.free(block)
libc.free(block)
"""


def in_worker(code):
    """Run code in a fresh worker process of Ray's; what it leaves as ``answer``."""
    import ray

    @ray.remote(num_cpus=0, max_restarts=0)
    class Worker:
        def run(self, code):
            names = {}
            exec(code, names)
            return names.get("answer")

    return ray.get(Worker.remote().run.remote(code), timeout=120)


@pytest.mark.reproduces("worker-double-free")
def test_worker_frees_twice(ray_cluster):
    in_worker(FREE_TWICE)


@pytest.mark.reproduces("worker-double-free", fidelity="real")
@pytest.mark.needs("wsl2", "torch", "tensordict")
def test_worker_on_wsl2(ray_cluster):
    in_worker("import torch, tensordict; answer = torch.cuda.is_available()")


@pytest.mark.guards("worker-double-free")
def test_probe_frees_twice(subject):
    with pytest.raises(RuntimeError, match="SIGABRT") as told:
        subject(FREE_TWICE, 60)
    assert "double free detected" in str(told.value)


@pytest.mark.guards("worker-double-free")
@pytest.mark.parametrize("module", ["torch", "tensordict"])
def test_probe_imports_what_a_worker_imports(subject, module, tmp_path, monkeypatch):
    (tmp_path / f"{module}.py").write_text(FREE_TWICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RuntimeError, match="SIGABRT"):
        subject()


@pytest.mark.guards("worker-double-free")
@pytest.mark.parametrize(
    ("code", "timeout", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60, r"SIGSEGV[^$]*\nFatal Python error"),
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", 60, "ImportError: libcudart"),
        ("import time; time.sleep(4); print(True)", 0.5, r"0\.5"),
        ("print('no answer')", 60, "answer"),
        ("print(True); raise SystemExit(3)", 60, "exit code 3"),
    ],
    ids=["signal", "exception", "hang", "silence", "answer-and-failure"],
)
def test_probe_that_fails(subject, code, timeout, message):
    with pytest.raises(RuntimeError, match=message):
        subject(code, timeout)


@pytest.mark.guards("worker-double-free")
@pytest.mark.parametrize("answer", [True, False])
def test_answer_of_a_fresh_process(subject, monkeypatch, answer):
    monkeypatch.setattr(sys, "mark", "of this process", raising=False)
    code = "import sys; print('a warning'); print({}hasattr(sys, 'mark'))"
    assert subject(code.format("not " if answer else ""), 60) is answer


@pytest.mark.guards("worker-double-free")
def test_what_is_printed_before_the_answer_may_be_no_text(subject):
    assert subject(r"import os; os.write(1, b'\xff\n'); print(True)", 60) is True


@pytest.mark.guards("worker-double-free")
def test_the_probe_reads_nothing_of_this_process(subject):
    ends, kept = os.pipe(), os.dup(0)
    os.write(ends[1], b"what somebody typed")
    os.close(ends[1])
    os.dup2(ends[0], 0)
    try:
        assert subject("import sys; print(not sys.stdin.read())", 60) is True
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(ends[0])


@pytest.mark.guards("worker-double-free", fidelity="real")
@pytest.mark.needs("torch", "tensordict")
def test_this_stack(subject, hardware):
    assert subject() is (hardware.id != "cpu")
    torch = sys.modules.get("torch")
    assert torch is None or not torch.cuda.is_initialized(), "the probe is to spare this process CUDA"


@pytest.mark.guards("worker-double-free", fidelity="real")
@pytest.mark.needs("torch", "tensordict")
@pytest.mark.hw(capability=">=7.0")
def test_worker_after_the_probe(subject, ray_cluster):
    assert subject()
    code = "import torch, tensordict; answer = torch.ones(8, device='cuda').sum().item()"
    assert in_worker(code) == 8
