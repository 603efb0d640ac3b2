"""verl leaves its Megatron engine out without megatron-core, and imports the engine's bridge only when it is built."""

from __future__ import annotations

import pytest

from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.left_out import leave_out
from pytest_rlregress.scenarios.dependencies.mbridge_missing.megatron_engine import configuration_of_engine, one_rank

pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore")]  # what is imported goes

MEGATRON = {
    "megatron/__init__.py": "",
    "megatron/core/__init__.py": "",
    "megatron/core/parallel_state.py": "def initialize_model_parallel(): ...\n",
}
BRIDGE = {**MEGATRON, "mbridge/__init__.py": "class AutoBridge: ...\n"}
CALLBACKS = "mbridge/utils/post_creation_callbacks.py"
VALUE_MODEL, MOE_ROUTER = "def make_value_model(model): ...\n", "def freeze_moe_router(model): ...\n"
PARTIAL = {  # of mbridge
    "without-the-symbol": ({**MEGATRON, "mbridge/__init__.py": ""}, "mbridge.AutoBridge"),
    "without-the-callbacks": (BRIDGE, "mbridge.utils.post_creation_callbacks.make_value_model"),
    "without-one-of-them": (
        {**BRIDGE, "mbridge/utils/__init__.py": "", CALLBACKS: VALUE_MODEL},
        "mbridge.utils.post_creation_callbacks.freeze_moe_router",
    ),
    "for-another-megatron": ({**MEGATRON, "mbridge/__init__.py": "import megatron.of_old"}, "mbridge.AutoBridge"),
}
PARTIAL_MEGATRON = {
    "another-part-of-megatron": {"megatron/energon/__init__.py": ""},
    "for-another-torch": {"megatron/core/__init__.py": "raise OSError('libtorch_cuda.so: cannot open')"},
}
WHOLE = {**BRIDGE, "mbridge/utils/__init__.py": "", CALLBACKS: VALUE_MODEL + MOE_ROUTER}


def put_in_front(monkeypatch, folder, files):
    wheel = wheel_index.wheel(folder, "mbridge", "0.15.1", files=files)
    for package in ("megatron", "mbridge"):
        wheel_index.put_in_front(monkeypatch, wheel, package)


def without_megatron(monkeypatch, folder):
    leave_out(monkeypatch, folder, "megatron", "megatron_core-*.dist-info")


@pytest.mark.reproduces("mbridge-missing")
@pytest.mark.needs("verl-trainer")
def test_the_engine_without_megatron_core(monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    from verl.workers.engine import EngineRegistry

    EngineRegistry.get_engine_cls("language_model", "megatron")


@pytest.mark.reproduces("mbridge-missing")
@pytest.mark.needs("megatron", "verl-trainer")
def test_the_engine_without_mbridge(monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path / "rest", "mbridge", "mbridge-*.dist-info")
    configuration_of_engine(tmp_path / "model", vanilla_mbridge=True)


@pytest.mark.reproduces("mbridge-missing")
@pytest.mark.needs("megatron", "verl-trainer")
def test_the_engine_without_megatron_bridge(monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path / "rest", "megatron/bridge", "megatron_bridge-*.dist-info")
    configuration_of_engine(tmp_path / "model", vanilla_mbridge=False)


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("megatron")
@pytest.mark.parametrize(
    ("setting", "left_out", "module"),
    [("mbridge", "mbridge", "mbridge"), ("megatron-bridge", "megatron/bridge", "megatron.bridge")],
    ids=["mbridge", "megatron-bridge"],
)
def test_a_bridge_that_alone_is_missing_is_said(subject, monkeypatch, tmp_path, setting, left_out, module):
    leave_out(monkeypatch, tmp_path, left_out)
    said = subject(setting)
    assert f"{module}.AutoBridge cannot be imported here (ModuleNotFoundError: No module named '{module}')" in said
    assert f"install {setting}" in said
    assert "vanilla_mbridge" in said, "it does not say which setting to change"


@pytest.mark.guards("mbridge-missing")
@pytest.mark.parametrize("setting", ["megatron", "mbridge", "megatron-bridge"])
def test_megatron_is_named_where_it_is_missing(subject, monkeypatch, tmp_path, setting):
    without_megatron(monkeypatch, tmp_path)
    said = subject(setting)
    assert "No module named 'megatron'" in said
    assert "install megatron-core" in said
    assert "strategy=fsdp" in said, "it does not say which setting to change"


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("verl-trainer")
def test_the_strategy_that_it_names_does_without(subject, monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    assert "strategy=fsdp" in subject("megatron")
    from verl.workers import engine

    assert engine.FSDPEngineWithLMHead


@pytest.mark.guards("mbridge-missing", fidelity="stand-in")
@pytest.mark.parametrize("files", PARTIAL_MEGATRON.values(), ids=PARTIAL_MEGATRON)
def test_a_part_of_megatron_is_not_enough(subject, monkeypatch, tmp_path, files):
    files = {"megatron/__init__.py": "", **files}
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "megatron", "0.16.1", files=files), "megatron")
    assert "megatron.core.parallel_state.initialize_model_parallel cannot be imported" in str(subject("megatron"))


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("megatron")
def test_a_whole_megatron_core_is_none_of_its_business(subject):
    assert subject("megatron") is None
    with one_rank() as parallel_state:
        parallel_state.initialize_model_parallel()
        assert parallel_state.get_tensor_model_parallel_world_size() == 1


@pytest.mark.guards("mbridge-missing", fidelity="stand-in")
@pytest.mark.parametrize(("files", "symbol"), PARTIAL.values(), ids=PARTIAL)
def test_a_partial_install_is_said(subject, monkeypatch, tmp_path, files, symbol):
    put_in_front(monkeypatch, tmp_path, files)
    said = subject("mbridge")
    assert said, f"{symbol} cannot be imported and nothing is said"
    assert symbol in said


@pytest.mark.guards("mbridge-missing", fidelity="stand-in")
def test_a_whole_install_is_none_of_its_business(subject, monkeypatch, tmp_path):
    put_in_front(monkeypatch, tmp_path, WHOLE)
    assert subject("mbridge") is None


@pytest.mark.guards("mbridge-missing")
@pytest.mark.needs("megatron", "mbridge", "verl-trainer")
def test_with_what_it_finds_whole_the_engine_is_configured(subject, tmp_path):
    assert subject("mbridge") is None
    assert configuration_of_engine(tmp_path, vanilla_mbridge=True).hidden_size == 32


@pytest.mark.guards("mbridge-missing")
def test_a_setting_that_is_not_known(subject):
    with pytest.raises(ValueError, match=r"'deepspeed'.*Allowed: .*megatron"):
        subject("deepspeed")
