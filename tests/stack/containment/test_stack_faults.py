"""Faults of the real stack's own processes: vLLM's engine core, a Ray worker, the raylet."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from matrix import Run, end

pytestmark = pytest.mark.slow

ENGINE = """
import os, signal
import psutil, pytest

pytestmark = [pytest.mark.needs("vllm"), pytest.mark.isolated(group="engine")]

def test_fault(tiny_qwen):
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_HOST_IP="127.0.0.1")
    import vllm
    engine = vllm.LLM(str(tiny_qwen.directory), enforce_eager=True, max_model_len=128, dtype="float32")
    *_, core = psutil.Process().children()  # after multiprocessing's resource tracker
    core.send_signal(signal.SIGKILL)
    engine.generate([{"prompt_token_ids": [1, 2, 3]}])

def test_after(): pass
"""
RAY = """
import ctypes, os, signal
import psutil, pytest

pytestmark = [pytest.mark.needs("ray"), pytest.mark.isolated(group="ray")]

def test_before(ray_cluster): pass

@pytest.mark.isolated(group="ray", timeout=40)
def test_task_too_large(ray_cluster):
    import ray
    @ray.remote(num_cpus=99)
    def wide(): pass
    ray.get(wide.remote())

def test_worker(ray_cluster):
    import ray
    @ray.remote(max_retries=0)
    def divide():
        ctypes.CDLL(None).div(1, 0)
    ray.get(divide.remote())

def test_between(ray_cluster):
    import ray
    @ray.remote
    def add(): return 3
    assert ray.get(add.remote()) == 3

@pytest.mark.isolated(group="ray", timeout=60)
def test_raylet(ray_cluster):
    import ray
    @ray.remote(max_retries=0)
    def sleep():
        import time; time.sleep(60)
    waiting = sleep.remote()
    ray.wait([waiting], timeout=1)
    raylet, = [p for p in psutil.Process().children(recursive=True) if p.name() == "raylet"]
    raylet.send_signal(signal.SIGKILL)
    ray.get(waiting)

def test_after(): pass
"""
TORCH = """
import ctypes
import pytest

pytestmark = [pytest.mark.needs("torch"), pytest.mark.isolated]

def test_fault():
    import torch
    torch.ones(2).sum()
    ctypes.CDLL(None).div(1, 0)
"""


# What xdist itself makes of a fault is in test_faults.py.
@pytest.fixture(
    scope="module", params=[pytest.param((), id="alone"), pytest.param(("-n2",), id="xdist", marks=pytest.mark.nightly)]
)
def matrix(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    folder.joinpath("pytest.ini").write_text("[pytest]\n")
    folder.joinpath("test_engine.py").write_text(ENGINE)
    folder.joinpath("test_ray.py").write_text(RAY)
    folder.joinpath("test_torch.py").write_text(TORCH)
    return end(Run(folder, *request.param))[0]


@pytest.mark.parametrize(
    ("module", "test", "words"),
    [
        ("test_engine", "test_fault", r"EngineDeadError|engine core exited unexpectedly"),
        ("test_ray", "test_worker", r"Ray worker \d+ .*died of SIGFPE"),
        ("test_ray", "test_raylet", r"Ray's raylet of node \w+ is gone and left no word: SIGKILL"),
        ("test_ray", "test_task_too_large", r"^\s*no end after 40 s: Ray says: It requires \{CPU: 99\} for placement"),
        ("test_torch", "test_fault", rf"torch {re.escape(version('torch'))} .*libtorch_cpu\.so"),
    ],
)
def test_death_of_a_stack_process_fails_the_right_test(matrix, module, test, words):
    tag, text = matrix.of(module, test)
    assert tag == "failure", matrix.output[-3000:]
    assert re.search(words, text), text


def test_all_other_tests_run_and_nothing_survives(matrix):
    others = [("test_engine", "test_after"), *(("test_ray", f"test_{n}") for n in ("before", "between", "after"))]
    assert {key: matrix.of(*key)[0] for key in others} == dict.fromkeys(others, "passed"), matrix.output[-5000:]
    assert not matrix.survivors
    assert not matrix.leftovers
