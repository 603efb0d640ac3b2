"""Scenarios that need a card, as far as they can be tried without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_rlregress import catalogue, hardware
from pytest_rlregress.containment.child import Limits
from pytest_rlregress.containment.grouping import limits_of

GIB = 2**30


class Collected:
    """A pytest plugin that keeps the tests that were collected."""

    def pytest_collection_finish(self, session):
        self.items = session.items


@pytest.fixture(scope="module")
def scenarios():
    """Every shipped test."""
    collected = Collected()
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "--hw=cpu", "--rl-long"]
    options += ["--pyargs", "pytest_rlregress.scenarios"]
    assert pytest.main(options, [collected]) == pytest.ExitCode.OK
    return collected.items


def needs_a_card(item):
    profiles, none = hardware.load_profiles(), hardware.Machine(())
    asked = [hardware.unmet(m.args, m.kwargs, profiles["cpu"], none) for m in item.iter_markers("hw")]
    return any(asked)


def test_whether_it_ran_on_a_card_is_said_of_every_failure_that_has_such_tests(scenarios):
    ids = {
        marker.args[0]
        for item in scenarios
        if needs_a_card(item)
        for side in ("reproduces", "guards")
        for marker in item.iter_markers(side)
    }
    assert len(ids) > 8
    assert ids == {failure.id for failure in catalogue.load([catalogue.SHIPPED]).values() if failure.on_card}


def test_an_engine_in_a_process_of_its_own_may_log_its_error_long_before_it_is_raised(scenarios):
    [item] = [item for item in scenarios if item.originalname == "test_engine_of_a_forked_process"]
    assert limits_of(item, Limits(seconds=300, stall=5)).stall >= 30


def test_every_card_leaves_the_trainer_what_the_documented_one_does(monkeypatch):
    import torch

    from pytest_rlregress.scenarios.memory import test_trainer_engine_oom as scenario

    def room(total):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=total))
        monkeypatch.setattr(torch, "empty", lambda size, **_: size)
        return total - scenario.hold_beside_7b(0.45)

    h100 = int(hardware.load_profiles()["h100"].memory_gib * GIB)
    assert room(h100) == room(int(139.8 * GIB)) == room(int(178.4 * GIB))
    assert room(h100) + 2 * scenario.LORA_7B["parameters"] == pytest.approx(scenario.left("h100", 0.45), abs=2)


@pytest.mark.isolated
@pytest.mark.needs("vllm", "transformers", "torch")
def test_a_cache_is_sized_where_graphs_are_the_default(tiny_qwen, monkeypatch):
    """On CUDA vLLM asks its model runner for the memory of CUDA graphs, unless the engine is eager."""
    import torch
    from vllm.config.compilation import CUDAGraphMode
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    from pytest_rlregress.scenarios.memory import test_gpu_memory_utilization as scenario

    create = EngineArgs.create_engine_config

    def as_on_cuda(asked):
        config = create(asked)
        if not config.model_config.enforce_eager:
            config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
        return config

    monkeypatch.setattr(EngineArgs, "create_engine_config", as_on_cuda)
    monkeypatch.setattr(type(current_platform), "is_cuda_alike", lambda _: True)
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "none")  # this torch may have no CUDA
    with pytest.raises(AssertionError, match="Error in memory profiling"):
        scenario.profile(monkeypatch, tiny_qwen.directory, 0.5, scenario.FREE, scenario.TOTAL - 2 * GIB)
