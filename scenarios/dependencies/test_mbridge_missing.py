"""verl's use_mbridge without mbridge, or with one that has the name and not the symbol."""

from __future__ import annotations

import sys

import pytest

from pytest_rlregress.fixtures import wheel_index

BRIDGE = "class AutoBridge:\n    pass\n"
WHOLE = {
    "mbridge/__init__.py": BRIDGE,
    "mbridge/utils/__init__.py": "",
    "mbridge/utils/post_creation_callbacks.py": "def make_value_model(model): ...\n",
}
PARTIAL = {
    "without-the-symbol": ({"mbridge/__init__.py": ""}, "mbridge.AutoBridge"),
    "without-the-callbacks": (
        {"mbridge/__init__.py": BRIDGE},
        "mbridge.utils.post_creation_callbacks.make_value_model",
    ),
    "without-megatron": ({"mbridge/__init__.py": "import megatron.of.another.version"}, "mbridge.AutoBridge"),
}


@pytest.mark.reproduces("mbridge-missing")
@pytest.mark.isolated
@pytest.mark.filterwarnings("ignore")
def test_verl_with_mbridge():
    from verl.models.mcore.mbridge import AutoBridge

    assert AutoBridge


@pytest.mark.guards("mbridge-missing", fidelity="injected")
@pytest.mark.isolated
def test_nothing_installed_is_said(subject, monkeypatch):
    monkeypatch.setitem(sys.modules, "mbridge", None)
    said = subject("mbridge")
    assert "mbridge.AutoBridge" in said
    assert "use_mbridge" in said, "it does not say which setting to change"


@pytest.mark.guards("mbridge-missing")
@pytest.mark.isolated
@pytest.mark.parametrize(("files", "symbol"), PARTIAL.values(), ids=PARTIAL)
def test_a_partial_install_is_said(subject, monkeypatch, tmp_path, files, symbol):
    wheel = wheel_index.wheel(tmp_path, "mbridge", "0.15.1", files=files)
    wheel_index.put_in_front(monkeypatch, wheel, "mbridge")
    said = subject("mbridge")
    assert said, f"{symbol} cannot be imported and nothing is said"
    assert symbol in said


@pytest.mark.guards("mbridge-missing")
@pytest.mark.isolated
def test_a_whole_install_is_none_of_its_business(subject, monkeypatch, tmp_path):
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "mbridge", "0.15.1", files=WHOLE), "mbridge")
    assert subject("mbridge") is None
