"""A missing or partial Megatron is named, with the setting to change: packages of a few lines stand in its place."""

import pytest

from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.mbridge_missing.test_mbridge_missing import without_megatron

MEGATRON = {
    "megatron/__init__.py": "",
    "megatron/core/__init__.py": "",
    "megatron/core/parallel_state.py": "def initialize_model_parallel(): ...\n",
}
NO_BRIDGE = {  # files of mbridge, by what is wrong with it
    "without-the-symbol": "",
    "for-another-megatron": "import megatron.of_old",
}


@pytest.mark.parametrize("setting", ["megatron", "mbridge", "megatron-bridge"])
def test_megatron_is_named_where_it_is_missing(subject, monkeypatch, tmp_path, setting):
    without_megatron(monkeypatch, tmp_path)
    said = subject(setting)
    assert "No module named 'megatron'" in said
    assert "install megatron-core" in said
    assert "strategy=fsdp" in said, "it does not say which setting to change"


def test_names_the_symbol_that_a_partial_megatron_lacks(subject, monkeypatch, tmp_path):
    files = {"megatron/__init__.py": "", "megatron/energon/__init__.py": ""}
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "megatron", "0.16.1", files=files), "megatron")
    assert "megatron.core.parallel_state.initialize_model_parallel cannot be imported" in str(subject("megatron"))


@pytest.mark.parametrize("text", NO_BRIDGE.values(), ids=NO_BRIDGE)
def test_names_the_symbol_that_a_partial_mbridge_lacks(subject, monkeypatch, tmp_path, text):
    wheel = wheel_index.wheel(tmp_path, "mbridge", "0.15.1", files={**MEGATRON, "mbridge/__init__.py": text})
    for package in ("megatron", "mbridge"):
        wheel_index.put_in_front(monkeypatch, wheel, package)
    assert "mbridge.AutoBridge" in str(subject("mbridge"))


def test_rejects_an_unknown_setting(subject):
    with pytest.raises(ValueError, match=r"'deepspeed'.*Allowed: .*megatron"):
        subject("deepspeed")
