"""gpu_memory_utilization on a card that a trainer uses too."""

from contextlib import contextmanager

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures import vllm_engine
from pytest_rlregress.scenarios.memory.gpu_memory_utilization.test_gpu_memory_utilization import DEFAULT, GIB
from pytest_rlregress.scenarios.memory.trainer import co_tenant
from pytest_rlregress.stack.lazy import torch

ENGINE = pytest.mark.needs("vllm-engine")
GPU = pytest.mark.hw(capability=">=8.0", memory=">=20GiB")


@ENGINE
@GPU
@pytest.mark.isolated
@pytest.mark.reproduces("gpu-memory-utilization", fidelity="real")
def test_default_beside_a_trainer_on_gpu(tiny_qwen):
    with act(), co_tenant(0.4), vllm_engine.start(tiny_qwen.directory, gpu_memory_utilization=DEFAULT):
        pass


@ENGINE
@GPU
@pytest.mark.isolated
@pytest.mark.reproduces("gpu-memory-utilization", fidelity="real")
def test_co_tenant_releases_while_the_engine_profiles_on_gpu(tiny_qwen, monkeypatch):
    from vllm.v1.worker import gpu_worker

    measure = gpu_worker.memory_profiling
    with act(), co_tenant(0.4) as release:

        @contextmanager
        def released_meanwhile(*args, **keywords):
            with measure(*args, **keywords) as result:
                yield result
                release()

        monkeypatch.setattr(gpu_worker, "memory_profiling", released_meanwhile)
        with vllm_engine.start(tiny_qwen.directory, gpu_memory_utilization=0.1):
            pass


@ENGINE
@GPU
@pytest.mark.isolated
@pytest.mark.guards("gpu-memory-utilization", fidelity="real")
def test_engine_beside_a_trainer_on_gpu(tiny_qwen, subject):
    with act(), co_tenant(0.85):  # a small engine: vLLM makes an object of each block
        free, total = torch.cuda.mem_get_info()
        share = subject(total, total - free + GIB)  # the engine's own context takes some before it looks
        with vllm_engine.start(tiny_qwen.directory, gpu_memory_utilization=share) as engine:
            [completion] = engine.generate([[100] * 8], 8, temperature=0.0, ignore_eos=True)
            assert len(completion.ids) == 8
            assert torch.cuda.mem_get_info()[0] < free
