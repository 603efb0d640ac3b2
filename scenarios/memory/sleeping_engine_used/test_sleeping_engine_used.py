"""EngineCore's own scheduling around sleep, on a CPU: what sleeps is what the engine says."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures import trl_engine
from pytest_rlregress.fixtures.trl_on_cpu import send_by
from pytest_rlregress.remedies.rollout import reload_by_worker
from pytest_rlregress.scenarios.memory.sleeping_engine_used.watching import (
    REQUESTS,
    executor_of,
    send,
    sync_in_order,
    watched,
)
from pytest_rlregress.stack import InterfaceMissing

CPU = pytest.mark.hw("cpu")
BOTH = {"weights", "kv_cache"}


@pytest.fixture
def weights(tiny_qwen):
    """What a trainer sends: every tensor by its name, the tied head too."""
    return tiny_qwen.model().state_dict()


@pytest.fixture
def llm(vllm_engine, weights):
    """Lend ``vllm_engine``'s engine; it is given back awake, idle and with its weights."""
    llm = vllm_engine.llm
    executor_of(llm).sleeping_tags  # noqa: B018 - by which the tests judge
    yield llm
    llm.wake_up()
    llm.llm_engine.abort_request(["sent"])
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    with suppress(InterfaceMissing):  # a release that takes no new weights has those of before
        reload_by_worker(llm, weights.items())
    llm.reset_prefix_cache()


@CPU
@pytest.mark.reproduces("sleeping-engine-used", fidelity="stand-in")
@pytest.mark.parametrize("form", REQUESTS)
def test_request_meets_a_sleeper(llm, form):
    with watched(llm) as forwards:
        with act():
            REQUESTS[form](llm)
        assert llm.llm_engine.has_unfinished_requests() or forwards, "no request was there"
        asleep = [parts for parts in forwards if parts]
        if asleep:
            silent(f"{len(asleep)} forward passes while {', '.join(sorted(asleep[0]))} slept")


@CPU
@pytest.mark.reproduces("sleeping-engine-used", fidelity="stand-in", expected="reproduced")
def test_update_sent_to_a_sleeper(llm, weights):
    llm.sleep(level=1)
    assert "weights" in executor_of(llm).sleeping_tags
    with act():
        try:
            reload_by_worker(llm, weights.items())
        except RuntimeError as error:
            if "sleep" not in str(error):
                raise
        else:
            silent("the engine took new weights while it said that its weights sleep")


@CPU
@pytest.mark.guards("sleeping-engine-used", fidelity="stand-in")
def test_update_in_order(llm, weights, vllm_engine):
    prompts = [[100] * 8, [200, 300]]
    before = vllm_engine.generate_greedy(prompts, 8)
    with act(), watched(llm) as forwards:
        llm.sleep(level=1)
        sync_in_order(llm, weights.items())
        send(llm, tokens=1)  # is served, now that all is awake
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
        after = vllm_engine.generate_greedy(prompts, 8)
    assert forwards
    assert not any(forwards)
    assert [one.ids for one in after] == [one.ids for one in before]


@CPU
@pytest.mark.isolated
@pytest.mark.guards("sleeping-engine-used", fidelity="stand-in")
@pytest.mark.needs("trl-trainer", "vllm-engine")
def test_trl_wakes_what_it_uses(tiny_qwen):
    """TRL's own sync and generation with vllm_enable_sleep_mode, as its trainer calls them, twice."""
    lengths = {
        "max_model_length": 128,
        "max_completion_length": 4,
        "generation_kwargs": {"ignore_eos": True},
    }
    starting = trl_engine.prepare(tiny_qwen.directory, enable_sleep_mode=True, **lengths)
    asleep_at_sync = []

    def note_and_send(llm, weights):
        asleep_at_sync.append(set(executor_of(llm).sleeping_tags))
        reload_by_worker(llm, weights)

    with act(), starting as generation:
        executor = executor_of(generation.llm)
        send_by(SimpleNamespace(vllm_generation=generation), note_and_send)
        with watched(generation.llm) as forwards:
            for _ in range(2):
                assert executor.sleeping_tags == BOTH
                generation.sync_weights()
                _, completions, *_ = generation.generate([[100] * 8], None, 1)
                assert [len(ids) for ids in completions] == [4]
        assert executor.sleeping_tags == BOTH
    assert asleep_at_sync == [{"kv_cache"}, {"kv_cache"}]
    assert forwards
    assert not any(forwards)
