"""verl's strategy "megatron" without megatron-core: the engine is not there, and the reason was a warning before."""

from __future__ import annotations

import pytest

from pytest_rlregress.fixtures import wheel_index
from pytest_rlregress.fixtures.left_out import leave_out
from pytest_rlregress.scenarios.dependencies.megatron_engine import one_rank

pytestmark = [pytest.mark.isolated, pytest.mark.filterwarnings("ignore")]  # what is imported goes

SYMBOL = "megatron.core.parallel_state.initialize_model_parallel"
PARTIAL = {
    "another-part-of-megatron": {"megatron/energon/__init__.py": ""},
    "without-the-symbol": {"megatron/core/__init__.py": "", "megatron/core/parallel_state.py": ""},
    "for-another-torch": {"megatron/core/__init__.py": "raise OSError('libtorch_cuda.so: cannot open')"},
}


def without_megatron(monkeypatch, folder):
    leave_out(monkeypatch, folder, "megatron", "megatron_core-*.dist-info")


@pytest.mark.reproduces("megatron-core-missing")
@pytest.mark.needs("verl-trainer")
def test_the_engine_by_its_strategy(monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    from verl.workers.engine import EngineRegistry

    EngineRegistry.get_engine_cls("language_model", "megatron")


@pytest.mark.reproduces("megatron-core-missing")
@pytest.mark.needs("verl-trainer")
def test_the_workers_of_verl_before_0_9(monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    from verl.workers.megatron_workers import AsyncActorRolloutRefWorker

    assert AsyncActorRolloutRefWorker


@pytest.mark.guards("megatron-core-missing")
def test_nothing_installed_is_said(subject, monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    said = subject("megatron")
    assert f"{SYMBOL} cannot be imported here (ModuleNotFoundError: No module named 'megatron')" in said
    assert "install megatron-core" in said
    assert "strategy=fsdp" in said, "it does not say which setting to change"


@pytest.mark.guards("megatron-core-missing")
@pytest.mark.needs("verl-trainer")
def test_the_strategy_that_it_names_does_without(subject, monkeypatch, tmp_path):
    without_megatron(monkeypatch, tmp_path)
    assert "strategy=fsdp" in subject("megatron")
    from verl.workers import engine

    assert engine.FSDPEngineWithLMHead


@pytest.mark.guards("megatron-core-missing", fidelity="stand-in")
@pytest.mark.parametrize("files", PARTIAL.values(), ids=PARTIAL)
def test_a_partial_install_is_said(subject, monkeypatch, tmp_path, files):
    files = {"megatron/__init__.py": "", **files}
    wheel_index.put_in_front(monkeypatch, wheel_index.wheel(tmp_path, "megatron", "0.16.1", files=files), "megatron")
    said = subject("megatron")
    assert said, f"{SYMBOL} cannot be imported and nothing is said"
    assert SYMBOL in said


@pytest.mark.guards("megatron-core-missing")
@pytest.mark.needs("megatron")
def test_a_whole_install_is_none_of_its_business(subject):
    assert subject("megatron") is None
    with one_rank() as parallel_state:
        parallel_state.initialize_model_parallel()
        assert parallel_state.get_tensor_model_parallel_world_size() == 1
