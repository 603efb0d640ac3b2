import os
import subprocess
import sys

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.stack.lazy import ray

# Ray waits for a cluster that is gone, for minutes if it is not told.
pytestmark = pytest.mark.isolated(
    timeout=180,
    env={
        "RAY_NUM_REDIS_GET_RETRIES": "1",
        "RAY_gcs_rpc_server_connect_timeout_s": "1",
        "RAY_py_gcs_connect_timeout_s": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    },
)


def started_and_killed(temporary):
    """``ray start`` on this machine, and all its processes killed: what Ray leaves behind."""
    import psutil

    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", "--num-cpus=1"]
    command += ["--include-dashboard=false", "--object-store-memory=80000000", "--disable-usage-stats"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert not done.returncode, done.stderr
    finally:
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and str(temporary) in " ".join(process.cmdline()):
                    process.kill()
                    process.wait(10)
            except psutil.Error:
                pass


@pytest.mark.reproduces("stale-ray-session")
@pytest.mark.needs("ray-cluster")
def test_cluster_was_killed(temporary):
    started_and_killed(temporary)
    with act():
        ray.init()


@pytest.mark.reproduces("stale-ray-session", fidelity="stand-in")
@pytest.mark.needs("ray")
def test_address_in_the_environment(monkeypatch, temporary, closed):
    monkeypatch.setenv("RAY_ADDRESS", closed)
    ray.init()


@pytest.mark.guards("stale-ray-session", fidelity="stand-in")
@pytest.mark.needs("ray-cluster")
def test_a_run_has_a_cluster_of_its_own(subject, temporary, closed, monkeypatch):
    (temporary / "ray").mkdir()
    (temporary / "ray" / "ray_current_cluster").write_text(closed)
    if subject(os.environ):
        monkeypatch.setenv("RAY_ADDRESS", "local")
    ray.init(include_dashboard=False, object_store_memory=80_000_000)
    try:
        assert ray.get(ray.remote(num_cpus=1)(lambda: 7).remote(), timeout=60) == 7
    finally:
        ray.shutdown()
