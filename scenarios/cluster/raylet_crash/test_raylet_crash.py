"""A raylet dies while verl waits for its task runner: Ray's exception tells of the actor, the logs of the raylet."""

import _thread
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.own_command import read_answer
from pytest_rlregress.stack.lazy import ray

pytestmark = pytest.mark.isolated(group="raylets", timeout=600)

SECONDS = 120  # of the task runner's work: longer than Ray takes to miss a raylet
# The driver's own raylet goes last: it takes the cluster along.
CRASHES = pytest.mark.parametrize("whose", ["runner", "driver"])
CLUSTER = pytest.mark.needs("ray-cluster", "verl-trainer", "verl.trainer.main_ppo:run_ppo(task_runner_class)")


class StillWaits(Exception):
    """The driver waits for a runner that no raylet is left to tell of."""


class Runner:
    """A task runner of verl's that only says where it is, and waits."""

    def run(self, config):
        print("Some common causes include: the raylet crashed by SIGSEGV", file=sys.stderr, flush=True)
        here = Path(config.trainer.default_local_dir)
        here.with_suffix(".part").write_text(str(os.getpid()))
        here.with_suffix(".part").rename(here)
        time.sleep(config.trainer.total_training_steps)


class TwoNodes:
    """A cluster of two raylets, and what Ray said when one died."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder
        self.errors = {}
        self.interrupted = False

    def run_ppo(self, name, node, seconds):
        """Run verl's main with a task runner on a node; return when that has worked for ``seconds``."""
        from hydra import compose, initialize_config_module
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        from verl.trainer.main_ppo import run_ppo

        settings = [f"trainer.default_local_dir={self.folder / name}", f"trainer.total_training_steps={seconds}"]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=settings)
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        run_ppo(config, ray.remote(Runner).options(num_cpus=0, scheduling_strategy=there))

    def crash(self, whose):
        """Run verl's main while a raylet dies; return what it raised, or None.

        The runner's dies of SIGSEGV, the driver's with its agent. A driver that goes on waiting is interrupted, and has
        raised ``StillWaits``. What died once stays dead: what came of it is kept.
        """
        if whose not in self.errors:
            node = self.cluster.nodes[whose == "runner"]
            (self.folder / whose).unlink(missing_ok=True)
            ended = threading.Event()
            killer = threading.Thread(target=self._kill, args=(whose, node, ended))
            killer.start()
            try:
                self.run_ppo(whose, node, SECONDS)
            except ray.exceptions.RayError as error:
                self.errors[whose] = error
            except KeyboardInterrupt:
                if not self.interrupted:
                    raise
                self.errors[whose] = StillWaits()
            finally:
                ended.set()
                killer.join()
        return self.errors.get(whose)

    def _kill(self, whose, node, ended):
        runner = self.folder / whose
        while not runner.exists():
            if ended.wait(0.1):
                return
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        if whose == "runner":
            raylet.send_signal(signal.SIGSEGV)
        else:
            [agent] = [child for child in raylet.children() if "ashboard" in " ".join(child.cmdline())]
            agent.kill()
        self.errors.setdefault(whose, None)
        ended.wait(SECONDS)
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker outlives its raylet
            psutil.Process(int(runner.read_text())).kill()
        if not ended.wait(SECONDS):
            self.interrupted = True
            _thread.interrupt_main()


def diagnose(logs):
    """Return what ``rlregress diagnose`` names in the logs of a session."""
    files = [str(log) for end in ("err", "out") for log in sorted(logs.glob(f"*.{end}"))]
    return [one["id"] for one in read_answer("diagnose", *files)["documented"]]


@pytest.fixture(scope="session")
def two_nodes(watch_log, tmp_path_factory):
    from pytest_rlregress.fixtures import ray_cluster

    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("RAY_health_check_period_ms", "300")  # else a dead raylet is missed for 15 s
        environ.setenv("RAY_health_check_failure_threshold", "2")
        with ray_cluster.start(nodes=2, num_cpus=1) as cluster:
            watch_log(cluster.log_dir)
            nodes = TwoNodes(cluster, tmp_path_factory.mktemp("runners"))
            nodes.run_ppo("lives", cluster.nodes[1], 0)
            shutil.copytree(cluster.log_dir, nodes.folder / "before", ignore=shutil.ignore_patterns("*.sock"))
            yield nodes


@CLUSTER
@pytest.mark.reproduces("raylet-crash")
@CRASHES
def test_verl_waits_for_its_runner(two_nodes, whose):
    with act():
        error = two_nodes.crash(whose)
        if isinstance(error, StillWaits):
            silent("the driver waits for its runner as if nothing had happened")
        if error:
            raise error


@CLUSTER
@pytest.mark.guards("raylet-crash")
@CRASHES
def test_diagnose_names_the_raylet(two_nodes, whose):
    """Of a run that ended well it names nothing, though a worker speaks of a raylet that crashed."""
    with act():
        error = two_nodes.crash(whose)
    assert "raylet-crash" not in diagnose(two_nodes.folder / "before")
    assert error is None or "raylet-crash" in diagnose(two_nodes.cluster.log_dir)


@pytest.mark.reproduces("raylet-crash", fidelity="real")
@pytest.mark.needs("windows", "ray-cluster")
def test_native_windows():
    from pytest_rlregress.fixtures import ray_cluster

    with ray_cluster.start():
        sleeper = ray.remote(time.sleep)
        with act():
            for _ in range(10):
                ray.get(sleeper.remote(3), timeout=60)
