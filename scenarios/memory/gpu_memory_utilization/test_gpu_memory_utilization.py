from types import SimpleNamespace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pytest_rlregress.fixtures import vllm_engine
from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.stack.lazy import torch

GIB = 2**30
TOTAL, FREE, DEFAULT = int(79.18 * GIB), int(48.97 * GIB), 0.9  # as documented: a trainer holds 30 GiB of an H100
ENGINE = pytest.mark.needs("vllm-engine")


def snapshot(free, total):
    from vllm.utils.mem_utils import MemorySnapshot

    return MemorySnapshot(free_memory=free, total_memory=total, device="cuda:0", auto_measure=False)


def request(free, total, share):
    """vLLM's own check of what it finds on the card: the bytes it takes."""
    from vllm.config import CacheConfig
    from vllm.v1.worker.utils import request_memory

    return request_memory(snapshot(free, total), CacheConfig(gpu_memory_utilization=share))


def profile(monkeypatch, model, share, free_before, free_after, **cache):
    """vLLM's GPU worker sizes its KV cache on a card that answers with these numbers: the bytes for it."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import Worker

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Eager: with CUDA graphs it would ask the stand-in model runner for their memory.
    asked = EngineArgs(model=str(model), max_model_len=128, gpu_memory_utilization=share, enforce_eager=True, **cache)
    worker = Worker(
        asked.create_engine_config(), local_rank=0, rank=0, distributed_init_method="", is_driver_worker=True
    )
    worker.model_runner = SimpleNamespace(profile_run=lambda **_: None, model_memory_usage=GIB)
    worker.init_snapshot = snapshot(free_before, TOTAL)
    worker.requested_memory = request(free_before, TOTAL, share)
    answers = {"memory_stats": {}, "get_memory_info": (free_after, TOTAL), "memory_reserved": GIB}
    answers |= {"empty_cache": None, "reset_peak_memory_stats": None}
    for name, answer in answers.items():
        for asked_of in (torch.accelerator, current_platform):  # vLLM 0.15 asks its platform
            monkeypatch.setattr(asked_of, name, lambda *_, answer=answer: answer, raising=False)
    monkeypatch.setattr(current_platform, "mem_get_info", lambda *_: (free_after, TOTAL))  # whom vLLM 0.22 asks
    return worker.determine_available_memory()


@pytest.mark.reproduces("gpu-memory-utilization")
def test_default_beside_a_trainer():
    request(FREE, TOTAL, DEFAULT)


@ENGINE
@pytest.mark.isolated
@pytest.mark.reproduces("gpu-memory-utilization")
def test_engine_on_memory_that_others_use(tiny_qwen):
    # Without a GPU the share is of the machine's memory: some of it is always in use.
    with vllm_engine.start(tiny_qwen.directory, gpu_memory_utilization=1.0):
        pass


@ENGINE
@pytest.mark.reproduces("gpu-memory-utilization")
def test_co_tenant_releases_while_the_engine_profiles(tiny_qwen, monkeypatch):
    profile(monkeypatch, tiny_qwen.directory, 0.5, FREE, TOTAL - 2 * GIB)


@ENGINE
@pytest.mark.guards("gpu-memory-utilization")
def test_fixed_cache_does_not_mind_a_release(tiny_qwen, monkeypatch, subject):
    share = subject(TOTAL, TOTAL - FREE)
    cache = int(share * TOTAL) - 2 * GIB
    got = profile(monkeypatch, tiny_qwen.directory, share, FREE, TOTAL - 2 * GIB, kv_cache_memory_bytes=cache)
    assert got == cache


@pytest.mark.guards("gpu-memory-utilization")
@pytest.mark.needs("vllm")
def test_documented_trainer_keeps_its_memory(subject):
    share = subject(TOTAL, TOTAL - FREE)
    assert request(FREE, TOTAL, share) <= FREE
    assert share == 0.5, "documented for a shared card"


@pytest.mark.guards("gpu-memory-utilization")
@pytest.mark.needs("vllm")
@given(total=st.integers(GIB, 300 * GIB), reserved=st.integers(0, 300 * GIB))
@example(TOTAL, TOTAL)
@example(TOTAL, TOTAL - 1)
@example(3 * GIB + 1, 2 * GIB)
@example(10_000 * 2**20, 6_000 * 2**20 + 1)
@EXAMPLES
def test_any_trainer_keeps_its_memory(subject, total, reserved):
    free = total - reserved
    if free <= 0:
        with pytest.raises(ValueError, match=r"\d"):
            subject(total, reserved)
        return
    assume(free > total // 1000)
    share = subject(total, reserved)
    assert 0 < share <= 0.5
    request(free, total, share)
    steps = round(share * 10_000)
    assert share == steps / 10_000, f"{share} isn't a step of 0.0001"
    assert steps * total <= free * 10_000, f"{share} leaves less than the {reserved} bytes reserved"
    assert share == 0.5 or free * 10_000 < (steps + 1) * total, (
        f"{share} leaves more than the {reserved} bytes reserved"
    )
