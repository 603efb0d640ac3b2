import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.dependencies.left_out import leave_out
from pytest_rlregress.scenarios.dependencies.mbridge_missing.megatron_engine import configuration_of_engine, one_rank

pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore")]  # what is imported goes


def without_megatron(monkeypatch, folder):
    leave_out(monkeypatch, folder, "megatron", "megatron_core-*.dist-info")


@pytest.mark.reproduces("mbridge-missing")
@pytest.mark.needs("verl-trainer")
def test_the_engine_without_megatron_core(monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    with act():
        from verl.workers.engine import EngineRegistry

        EngineRegistry.get_engine_cls("language_model", "megatron")


BRIDGES = {
    "mbridge": (["mbridge", "mbridge-*.dist-info"], {"vanilla_mbridge": True}),
    "megatron-bridge": (["megatron/bridge", "megatron_bridge-*.dist-info"], {"vanilla_mbridge": False}),
}


@pytest.mark.reproduces("mbridge-missing")
@pytest.mark.needs("megatron", "verl-trainer")
@pytest.mark.parametrize(("left_out", "settings"), BRIDGES.values(), ids=BRIDGES)
def test_the_engine_without_its_bridge(monkeypatch, tmp_path, left_out, settings):
    leave_out(monkeypatch, tmp_path / "rest", *left_out)
    with act():
        configuration_of_engine(tmp_path / "model", **settings)


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("megatron")
@pytest.mark.parametrize(
    ("setting", "left_out", "module"),
    [("mbridge", "mbridge", "mbridge"), ("megatron-bridge", "megatron/bridge", "megatron.bridge")],
    ids=["mbridge", "megatron-bridge"],
)
def test_a_bridge_that_alone_is_missing_is_said(subject, monkeypatch, tmp_path, setting, left_out, module):
    leave_out(monkeypatch, tmp_path, left_out)
    with act():
        said = subject(setting)
    assert f"{module}.AutoBridge cannot be imported here (ModuleNotFoundError: No module named '{module}')" in said
    assert f"install {setting}" in said
    assert "vanilla_mbridge" in said, "it does not say which setting to change"


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("verl-trainer")
def test_the_strategy_that_it_names_does_without(subject, monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    with act():
        assert "strategy=fsdp" in subject("megatron")
    from verl.workers import engine

    assert engine.FSDPEngineWithLMHead


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("megatron")
def test_whole_megatron_core_needs_no_advice(subject):
    assert subject("megatron") is None
    with one_rank() as parallel_state:
        parallel_state.initialize_model_parallel()
        assert parallel_state.get_tensor_model_parallel_world_size() == 1


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("megatron", "mbridge", "verl-trainer")
def test_with_what_it_finds_whole_the_engine_is_configured(subject, tmp_path):
    assert subject("mbridge") is None
    assert configuration_of_engine(tmp_path, vanilla_mbridge=True).hidden_size == 32
