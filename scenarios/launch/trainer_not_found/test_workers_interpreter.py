"""Ray's workers may have another interpreter than the driver."""

import sys

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.launch.trainer_not_found import interpreters
from pytest_rlregress.scenarios.own_command import read_answer
from pytest_rlregress.stack.lazy import ray

KEY = "ray_kwargs.ray_init.runtime_env.py_executable"


@pytest.fixture
def without_verl(tmp_path, monkeypatch):
    """An interpreter with all that is installed here but verl."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return interpreters.make_interpreter(tmp_path, without="verl")


def compose(*overrides):
    """What ``verl.trainer.main_ppo`` composes."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*overrides])


@pytest.mark.reproduces("trainer-not-found")
@pytest.mark.needs("verl-trainer")
def test_the_task_runner_of_verl(without_verl, ray_cluster):
    from verl.trainer import main_ppo

    config = compose()
    # verl gives the key to ray.init(); here to the one actor, for other tests share the cluster.
    runner = main_ppo.TaskRunnerV1.options(runtime_env={"py_executable": without_verl})
    with act():
        main_ppo.run_ppo(config, runner)


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("verl-trainer")
def test_a_worker_with_the_drivers_interpreter(ray_cluster, tmp_path):
    from verl.trainer import main_ppo

    class Runner:
        """As small as verl's TaskRunner can be: it says where it runs, and that verl is there."""

        def run(self, config):
            import sys
            from pathlib import Path

            from verl.trainer import main_ppo

            file = Path(config.trainer.default_local_dir)
            file.write_text(f"{sys.executable} {main_ppo.__name__}")

    said = tmp_path / "said"
    config = compose(f"trainer.default_local_dir={said}")
    runner = ray.remote(Runner).options(runtime_env={"py_executable": sys.executable})
    with act():
        main_ppo.run_ppo(config, runner)
        assert said.read_text() == f"{sys.executable} verl.trainer.main_ppo"


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("verl-trainer")
def test_preflight_names_the_workers_interpreter(without_verl):
    with act():
        command = [sys.executable, "-m", "verl.trainer.main_ppo", f"+{KEY}={without_verl}"]
        findings = read_answer("preflight", "--hw=cpu", "--installed", "--", *command)["findings"]
        found = [one for one in findings if one["failure"] == "trainer-not-found"]
        found = [(one["key"], one["why"]) for one in found]
        assert found == [(KEY, f"{without_verl} has no module verl")]
