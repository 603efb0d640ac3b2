"""CUDA is looked for in a Ray worker, with a driver that frees a block twice where it is asked first."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.own_command import read_answer
from pytest_rlregress.stack import InterfaceMissing
from pytest_rlregress.stack.lazy import ray, torch

SOURCE = Path(__file__).with_name("driver.c")
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: The remedy's lines.
PROBE = "import torch, tensordict; print(torch.cuda.is_available())"
PROBE_OF_VLLM = "from vllm.platforms import current_platform"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with the driver's two libraries; the first call of either frees a block twice."""
    compiler = shutil.which("cc")
    if not compiler:
        raise InterfaceMissing("compiles a driver's library, and there is no C compiler (cc)")
    folder = tmp_path_factory.mktemp("driver")
    for name in LIBRARIES:
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", folder / name, SOURCE], check=True)
    return folder


@pytest.fixture
def cuda_build():
    """Skip on a torch that doesn't look for CUDA."""
    if torch.version.cuda is None:
        raise InterfaceMissing(f"needs torch's CUDA build, which torch {torch.__version__} isn't")


class Worker:
    def run(self, code):
        exec(code)


def run_in_worker(code, folder):
    """Run code in a fresh worker of Ray's, whose driver is in ``folder``."""
    environment = {"LD_LIBRARY_PATH": str(folder)}
    actor = ray.remote(Worker).options(num_cpus=0, runtime_env={"env_vars": environment}).remote()
    try:
        ray.get(actor.run.remote(code), timeout=300)
    finally:
        ray.kill(actor)


@pytest.mark.reproduces("worker-double-free")
@pytest.mark.needs("verl")
def test_worker_imports_verl(ray_cluster, cuda_build, driver):
    with act():
        run_in_worker("import verl.utils.device", driver)


@pytest.mark.reproduces("worker-double-free")
@pytest.mark.needs("vllm")
def test_worker_imports_vllm(ray_cluster, driver):
    """vLLM asks the driver's NVML which platform it is on, its CPU build too; up to 0.31 while it is imported."""
    with act():
        run_in_worker(PROBE_OF_VLLM, driver)


@pytest.mark.reproduces("worker-double-free", fidelity="real")
@pytest.mark.needs("wsl2", "verl", "tensordict")
def test_worker_on_wsl2(ray_cluster):
    with act():
        run_in_worker("import verl.utils.device", os.environ.get("LD_LIBRARY_PATH", ""))


def probe(code, folder):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.guards("worker-double-free")
@pytest.mark.needs("torch", "tensordict")
def test_probe_dies_where_the_worker_would(cuda_build, driver, tmp_path):
    with act():
        died = probe(PROBE, driver)
        lived = probe(PROBE, tmp_path)
    assert died.returncode == -signal.SIGABRT, died
    assert "double free" in died.stderr
    assert lived.stdout.split()[-1:] in (["True"], ["False"]), lived


@pytest.mark.guards("worker-double-free")
@pytest.mark.needs("vllm")
def test_probe_of_vllm(driver, tmp_path):
    with act():
        died = probe(PROBE_OF_VLLM, driver)
        lived = probe(PROBE_OF_VLLM, tmp_path)
    assert died.returncode == -signal.SIGABRT, died
    assert "double free" in died.stderr
    assert lived.returncode == 0, lived


def list_logs(cluster):
    return set(cluster.log_dir.glob("worker-*.err"))


def diagnose(logs):
    """Return what ``rlregress diagnose`` names in logs."""
    return [one["id"] for one in read_answer("diagnose", *map(str, logs))["documented"]]


@pytest.mark.guards("worker-double-free")
@pytest.mark.needs("vllm")
def test_diagnose_reads_the_workers_words(ray_cluster, driver, tmp_path):
    """A worker with a whole driver leaves nothing to name."""
    others = list_logs(ray_cluster)
    run_in_worker("print('worked')", tmp_path)
    alive = list_logs(ray_cluster) - others
    with act():
        died = False
        try:
            run_in_worker(PROBE_OF_VLLM, driver)
        except ray.exceptions.RayActorError:
            died = True
    assert not diagnose(alive)
    assert not died or diagnose(list_logs(ray_cluster) - others - alive) == ["worker-double-free"]
