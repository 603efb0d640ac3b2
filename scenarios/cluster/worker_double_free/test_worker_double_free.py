"""CUDA is looked for in a Ray worker, with a driver that frees a block twice where it is asked first."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlregress import cli
from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.lazy import ray, torch
from pytest_rlregress.stack import InterfaceMissing

SOURCE = Path(__file__).with_name("driver.c")
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: The remedy's line.
PROBE = "import torch, tensordict; print(torch.cuda.is_available())"


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
    def load(self, module):
        importlib.import_module(module)
        return os.getpid()


def load_in_worker(module, folder):
    """Import a module in a fresh worker of Ray's, whose driver is in ``folder``; return the worker's pid."""
    environment = {"LD_LIBRARY_PATH": str(folder)}
    actor = ray.remote(Worker).options(num_cpus=0, runtime_env={"env_vars": environment}).remote()
    try:
        return ray.get(actor.load.remote(module), timeout=300)
    finally:
        ray.kill(actor)


@pytest.mark.reproduces("worker-double-free")
@pytest.mark.needs("verl")
def test_worker_imports_verl(ray_cluster, cuda_build, driver):
    with act():
        load_in_worker("verl.utils.device", driver)


@pytest.mark.reproduces("worker-double-free")
@pytest.mark.needs("vllm")
def test_worker_imports_vllm(ray_cluster, driver):
    """vLLM asks the driver's NVML which platform it is on, its CPU build too."""
    with act():
        load_in_worker("vllm", driver)


@pytest.mark.reproduces("worker-double-free", fidelity="real")
@pytest.mark.needs("wsl2", "verl", "tensordict")
def test_worker_on_wsl2(ray_cluster):
    with act():
        load_in_worker("verl.utils.device", os.environ.get("LD_LIBRARY_PATH", ""))


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
        died = probe("import vllm", driver)
        lived = probe("import vllm", tmp_path)
    assert died.returncode == -signal.SIGABRT, died
    assert "double free" in died.stderr
    assert lived.returncode == 0, lived


def list_logs(cluster):
    return set(cluster.log_dir.glob("worker-*.err"))


def diagnose(capsys, logs):
    """Return what ``rlregress diagnose`` names in logs."""
    capsys.readouterr()
    cli.main(["diagnose", "--json", *map(str, logs)])
    return [one["id"] for one in json.loads(capsys.readouterr().out)["documented"]]


@pytest.mark.guards("worker-double-free")
@pytest.mark.needs("vllm")
def test_diagnose_reads_the_workers_words(ray_cluster, driver, tmp_path, capsys):
    """A worker with a whole driver leaves nothing to name."""
    others = list_logs(ray_cluster)
    load_in_worker("vllm", tmp_path)
    alive = list_logs(ray_cluster) - others
    with act():
        died = False
        try:
            load_in_worker("vllm", driver)
        except ray.exceptions.RayActorError:
            died = True
    assert not diagnose(capsys, alive)
    assert not died or diagnose(capsys, list_logs(ray_cluster) - others - alive) == ["worker-double-free"]
