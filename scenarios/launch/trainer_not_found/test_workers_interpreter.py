"""Ray's workers may have another interpreter than the driver."""

import json
import sys
import tempfile

import pytest

from pytest_rlregress import cli
from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.launch.trainer_not_found import interpreters

KEY = "ray_kwargs.ray_init.runtime_env.py_executable"
pytestmark = pytest.mark.isolated(env={"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"})


@pytest.fixture
def without_verl(tmp_path):
    """An interpreter with all that is installed here but verl."""
    return interpreters.make_interpreter(tmp_path, without="verl")


@pytest.fixture
def run_ppo(monkeypatch):
    """Start verl's ``run_ppo`` with a class in the place of its TaskRunner, and workers of an interpreter."""
    from hydra import compose, initialize_config_module
    from verl.trainer import main_ppo

    def run_ppo(interpreter, runner, *overrides):
        overrides = [*overrides, f"+{KEY}={interpreter}", "ray_kwargs.ray_init.num_cpus=1"]
        overrides += ["+ray_kwargs.ray_init.include_dashboard=false"]
        overrides += ["+ray_kwargs.ray_init.object_store_memory=80000000"]
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=overrides)
        with act():
            main_ppo.run_ppo(config, runner)

    # The path of a Unix socket inside may have 107 bytes, of which Ray takes some 70.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        for variable in ("RAY_ADDRESS", "PYTHONPATH"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield run_ppo


@pytest.mark.reproduces("trainer-not-found")
@pytest.mark.needs("verl-trainer", "ray-cluster")
def test_the_runner_of_verl(without_verl, run_ppo):
    from verl.trainer.main_ppo import TaskRunnerV1

    run_ppo(without_verl, TaskRunnerV1)


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("verl-trainer", "ray-cluster")
def test_a_worker_with_the_drivers_interpreter(run_ppo, tmp_path):
    import ray

    class Runner:
        """As small as a TaskRunner can be: it says where it runs and that verl is there."""

        def run(self, config):
            import sys
            from pathlib import Path

            from verl.trainer import main_ppo

            Path(config.trainer.default_local_dir).write_text(f"{sys.executable} {main_ppo.__name__}")

    said = tmp_path / "said"
    run_ppo(sys.executable, ray.remote(Runner), f"trainer.default_local_dir={said}")
    assert said.read_text() == f"{sys.executable} verl.trainer.main_ppo"


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("verl-trainer")
def test_preflight_names_the_workers_interpreter(without_verl, capsys):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", f"+{KEY}="]
    for interpreter, said in ((without_verl, [f"{without_verl} has no module verl"]), (sys.executable, [])):
        command[-1] = f"+{KEY}={interpreter}"
        with act():
            cli.main(["preflight", "--hw=cpu", "--installed", "--json", "--", *command])
            findings = json.loads(capsys.readouterr().out)["findings"]
            assert [one["why"] for one in findings if one["failure"] == "trainer-not-found"] == said
