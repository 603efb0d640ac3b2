"""Real sleep mode, with CUDA graphs."""

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures import vllm_engine
from pytest_rlregress.remedies.rollout import reload_by_worker
from pytest_rlregress.scenarios.memory.sleeping_engine_used.watching import REQUESTS, sync_in_order
from pytest_rlregress.stack.lazy import torch

pytestmark = [
    pytest.mark.hw(capability=">=8.0"),
    pytest.mark.isolated,
    pytest.mark.needs("vllm-engine"),
]


def start(tiny_qwen):
    from vllm import LLM  # noqa: F401 - what is started

    return vllm_engine.start(tiny_qwen.directory, enable_sleep_mode=True, enforce_eager=False)


@pytest.mark.reproduces("sleeping-engine-used")
@pytest.mark.parametrize("form", REQUESTS)
def test_request_on_gpu(tiny_qwen, form):
    with start(tiny_qwen) as engine, act():
        REQUESTS[form](engine.llm)
        torch.cuda.synchronize()  # where an access that was illegal is said at the latest


@pytest.mark.reproduces("sleeping-engine-used", expected="reproduced")
def test_update_on_gpu(tiny_qwen):
    weights = tiny_qwen.model().state_dict()
    with start(tiny_qwen) as engine:
        engine.llm.sleep(level=1)
        with act():
            reload_by_worker(engine.llm, weights.items())
            torch.cuda.synchronize()


@pytest.mark.guards("sleeping-engine-used")
@pytest.mark.parametrize("level", [1, 2])
def test_update_in_order_on_gpu(tiny_qwen, level):
    weights = tiny_qwen.model().state_dict()
    prompts = [[100] * 8, [200, 300]]
    with start(tiny_qwen) as engine:
        before = engine.generate_greedy(prompts, 8)
        with act():
            engine.llm.sleep(level=level)
            sync_in_order(engine.llm, weights.items())
            after = engine.generate_greedy(prompts, 8)
    assert [one.ids for one in after] == [one.ids for one in before]
