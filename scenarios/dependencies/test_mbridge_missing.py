"""verl's Megatron engine imports its bridge as it is built, long after the configuration was accepted."""

from __future__ import annotations

import pytest

from pytest_rlregress.fixtures import wheel_index
from pytest_rlregress.fixtures.left_out import leave_out
from pytest_rlregress.scenarios.dependencies.megatron_engine import configuration_of_engine

pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore")]  # what is imported goes

MEGATRON = {
    "megatron/__init__.py": "",
    "megatron/core/__init__.py": "",
    "megatron/core/parallel_state.py": "def initialize_model_parallel(): ...\n",
}
BRIDGE = {**MEGATRON, "mbridge/__init__.py": "class AutoBridge: ...\n"}
CALLBACKS = "mbridge/utils/post_creation_callbacks.py"
VALUE_MODEL, MOE_ROUTER = "def make_value_model(model): ...\n", "def freeze_moe_router(model): ...\n"
PARTIAL = {
    "without-the-symbol": ({**MEGATRON, "mbridge/__init__.py": ""}, "mbridge.AutoBridge"),
    "without-the-callbacks": (BRIDGE, "mbridge.utils.post_creation_callbacks.make_value_model"),
    "without-one-of-them": (
        {**BRIDGE, "mbridge/utils/__init__.py": "", CALLBACKS: VALUE_MODEL},
        "mbridge.utils.post_creation_callbacks.freeze_moe_router",
    ),
    "for-another-megatron": ({**MEGATRON, "mbridge/__init__.py": "import megatron.of_old"}, "mbridge.AutoBridge"),
}
WHOLE = {**BRIDGE, "mbridge/utils/__init__.py": "", CALLBACKS: VALUE_MODEL + MOE_ROUTER}


def put_in_front(monkeypatch, folder, files):
    wheel = wheel_index.wheel(folder, "mbridge", "0.15.1", files=files)
    for package in ("megatron", "mbridge"):
        wheel_index.put_in_front(monkeypatch, wheel, package)


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
@pytest.mark.parametrize("setting", ["mbridge", "megatron-bridge"])
def test_a_bridge_is_not_blamed_for_megatron(subject, monkeypatch, tmp_path, setting):
    leave_out(monkeypatch, tmp_path, "megatron")
    said = subject(setting)
    assert "No module named 'megatron'" in said
    assert "install megatron-core" in said
    assert "strategy=fsdp" in said, "it does not say which setting to change"


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
