"""A raylet that dies takes its node along: Ray's exception tells of the actor or its owner, the logs of the raylet."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time

import pytest

pytestmark = pytest.mark.isolated(group="raylets")

# Whose raylet ends, and what of it the logs name. The driver's own goes last, and with it all others.
CRASHES = {"actor": "SIGSEGV", "driver": "dashboard_agent"}
AGENT = re.compile(r"DashboardAgent|dashboard/agent\.py")  # as Ray names it from 2.54 on, and before
WAIT = 90  # seconds until the driver no longer waits for the actor
SECONDS = 20  # of the actor's work. A worker outlives its raylet for a while: what it finishes then arrives.
CRASH = pytest.mark.parametrize("whose", CRASHES)
CLUSTER = pytest.mark.needs("ray-cluster")


@pytest.fixture(scope="session")
def two_nodes(watch_log):
    """A Ray cluster of two raylets, and what the driver waits for, by the crash that was made meanwhile."""
    from pytest_rlregress.fixtures import ray_cluster

    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("RAY_health_check_period_ms", "300")  # else a dead raylet is missed for 15 s
        environ.setenv("RAY_health_check_failure_threshold", "2")
        with ray_cluster.start(nodes=2, num_cpus=1) as cluster:
            watch_log(cluster.log_dir)
            yield cluster, {}


class Sleeper:
    def speak(self):
        print("Some common causes include: the raylet crashed by SIGSEGV", file=sys.stderr, flush=True)
        return os.getpid()

    def sleep(self, seconds):
        time.sleep(seconds)


def crash(two_nodes, whose):
    """Once each: wait for an actor whose node's raylet dies of SIGSEGV, or while the driver's ends with its agent."""
    import psutil
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cluster, waiting = two_nodes
    if whose not in waiting:
        node = cluster.nodes[whose == "actor"]
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        sleeper = ray.remote(Sleeper).options(num_cpus=0, scheduling_strategy=there).remote()
        worker = psutil.Process(ray.get(sleeper.speak.remote(), timeout=60))
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        [agent] = [process for process in raylet.children() if AGENT.search(" ".join(process.cmdline()))]
        waiting[whose] = sleeper.sleep.remote(SECONDS), worker
        raylet.send_signal(signal.SIGSEGV) if whose == "actor" else agent.kill()
    task, worker = waiting[whose]
    try:
        ray.get(task, timeout=WAIT)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()


@CLUSTER
@pytest.mark.reproduces("raylet-crash")
@CRASH
def test_waiting_for_an_actor(two_nodes, whose):
    crash(two_nodes, whose)


@CLUSTER
@pytest.mark.guards("raylet-crash")
@CRASH
def test_the_raylet_is_blamed(two_nodes, subject, whose):
    import ray

    cluster, waiting = two_nodes
    for step in ("before", "after"):
        if step == "after":
            with contextlib.suppress(ray.exceptions.RayError):
                crash(two_nodes, whose)
        told = subject(cluster.log_dir)
        raylets = [sentence for sentence in told if "raylet" in sentence]
        assert len(raylets) == len(waiting), f"{len(waiting)} raylets died, blamed: {told}"
        assert told[: len(raylets)] == raylets, f"raylets first, for their workers die with them: {told}"
        for sign in (CRASHES[one] for one in waiting):
            assert any(sign in sentence for sentence in raylets), f"no {sign} in {raylets}"


@pytest.mark.guards("raylet-crash")
def test_raylets_come_first(subject, tmp_path):
    for name in ("gcs_server", "raylet"):
        (tmp_path / f"{name}.err").write_text("*** SIGSEGV received at time=1764200000 on cpu 0 ***\n")
    first, second = subject(tmp_path)
    assert "raylet" in first
    assert "gcs_server" in second
    assert all("SIGSEGV" in sentence for sentence in (first, second))


@pytest.mark.guards("raylet-crash")
def test_what_raylets_wrote_before_they_ended(subject, tmp_path):
    """The wording of today, and that of until 2023, which has no agent's name; among bytes that are no text."""
    said = "The raylet exited immediately because"
    (tmp_path / "raylet.1.err").write_text(f"{said} one Ray agent failed, agent_name = runtime_env_agent.\n")
    (tmp_path / "raylet.err").write_bytes(b"\xff\xfe\n" + f"{said} the Ray agent failed.\n".encode())
    (tmp_path / "raylet.2.err").write_text("")
    first, second = subject(tmp_path)
    assert "raylet.1.err" in first
    assert "runtime_env_agent" in first
    assert "raylet.err" in second
    assert "its agent failed" in second


@pytest.mark.guards("raylet-crash")
def test_folder_that_is_none(subject, tmp_path):
    assert subject(tmp_path) == []
    with pytest.raises(ValueError, match="logs"):
        subject(tmp_path / "logs")


@pytest.mark.reproduces("raylet-crash", fidelity="real")
@pytest.mark.needs("windows", "ray-cluster")
@pytest.mark.isolated(timeout=180)
def test_native_windows():
    import ray

    from pytest_rlregress.fixtures import ray_cluster

    with ray_cluster.start():
        sleeper = ray.remote(Sleeper).remote()
        for _ in range(10):
            ray.get(sleeper.sleep.remote(3), timeout=60)
