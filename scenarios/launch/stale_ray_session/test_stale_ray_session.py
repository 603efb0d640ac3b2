"""A Ray cluster that was killed leaves its address behind, and the next run joins it and waits for nobody."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

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


@pytest.fixture
def closed():
    """An address on this machine at which nobody listens."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def temporary(monkeypatch):
    """The folder that Ray takes for /tmp; no other cluster's address is seen."""
    # The path of a Unix socket inside may have 107 bytes, of which Ray takes some 70.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def remember(temporary, address):
    (temporary / "ray").mkdir()
    file = temporary / "ray" / "ray_current_cluster"
    file.write_text(address)
    return file


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
    import ray

    ray.init()


@pytest.mark.reproduces("stale-ray-session", fidelity="stand-in")
@pytest.mark.needs("ray")
def test_address_in_the_environment(monkeypatch, temporary, closed):
    monkeypatch.setenv("RAY_ADDRESS", closed)
    import ray

    ray.init()


@pytest.mark.guards("stale-ray-session", fidelity="stand-in")
@pytest.mark.parametrize("written", ["{}", "ray://{}"])
@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_an_address_that_is_gone_is_named(subject, temporary, closed, written, variable):
    address = written.format(closed)
    file = remember(temporary, f"{address}\n")
    for chosen in ({}, {"RAY_ADDRESS": ""}, {"RAY_ADDRESS": "auto"}):
        environ = {variable: str(temporary), **chosen}
        before = dict(environ)
        assert subject(environ) == f"{address}, as {file} says"
        assert environ == before
    assert subject({"RAY_ADDRESS": address}) == f"{address}, as RAY_ADDRESS says"
    assert file.read_text() == f"{address}\n"


@pytest.mark.guards("stale-ray-session", fidelity="stand-in")
def test_what_does_not_fail_is_left_alone(subject, temporary, closed):
    assert subject({"RAY_TMPDIR": str(temporary)}) is None
    remember(temporary, closed)
    assert subject({"RAY_TMPDIR": str(temporary), "RAY_ADDRESS": "local"}) is None
    elsewhere = str(Path(temporary, "elsewhere"))
    assert subject({"RAY_TMPDIR": elsewhere, "TMPDIR": str(temporary)}) is None
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert subject({"RAY_TMPDIR": str(temporary), "RAY_ADDRESS": address}) is None
        (temporary / "ray" / "ray_current_cluster").write_text(address)
        assert subject({"RAY_TMPDIR": str(temporary)}) is None
        assert subject({"RAY_TMPDIR": str(temporary), "RAY_ADDRESS": closed}) == f"{closed}, as RAY_ADDRESS says"
