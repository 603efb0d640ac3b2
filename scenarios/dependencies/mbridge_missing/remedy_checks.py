"""A missing or partial Megatron is named, with the setting to change: packages of a few lines stand in its place."""

from __future__ import annotations

import pytest

from pytest_rlregress.scenarios.dependencies import wheel_index
from pytest_rlregress.scenarios.dependencies.mbridge_missing.test_mbridge_missing import without_megatron

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


@pytest.mark.parametrize("setting", ["megatron", "mbridge", "megatron-bridge"])
def test_megatron_is_named_where_it_is_missing(subject, monkeypatch, tmp_path, setting):
    without_megatron(monkeypatch, tmp_path)
    said = subject(setting)
    assert "No module named 'megatron'" in said
    assert "install megatron-core" in said
    assert "strategy=fsdp" in said, "it does not say which setting to change"


@pytest.mark.parametrize("files", PARTIAL_MEGATRON.values(), ids=PARTIAL_MEGATRON)
def test_a_part_of_megatron_is_not_enough(subject, monkeypatch, tmp_path, files):
    files = {"megatron/__init__.py": "", **files}
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "megatron", "0.16.1", files=files), "megatron")
    assert "megatron.core.parallel_state.initialize_model_parallel cannot be imported" in str(subject("megatron"))


@pytest.mark.parametrize(("files", "symbol"), PARTIAL.values(), ids=PARTIAL)
def test_a_partial_install_is_said(subject, monkeypatch, tmp_path, files, symbol):
    put_in_front(monkeypatch, tmp_path, files)
    said = subject("mbridge")
    assert said, f"{symbol} cannot be imported and nothing is said"
    assert symbol in said


def test_a_whole_install_is_none_of_its_business(subject, monkeypatch, tmp_path):
    put_in_front(monkeypatch, tmp_path, WHOLE)
    assert subject("mbridge") is None


def test_a_setting_that_is_not_known(subject):
    with pytest.raises(ValueError, match=r"'deepspeed'.*Allowed: .*megatron"):
        subject("deepspeed")
