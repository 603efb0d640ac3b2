import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures import vllm_engine
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.needs("vllm-engine")

GPU = pytest.mark.hw(capability=">=8.0")
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
OTHERS = "max_split_size_mb:512,roundup_power2_divisions:[256:1,512:2,>:4]"
ON = "expandable_segments:True"
UNSEEN = {"newer-name": (NEW, ON), "space": (OLD, "expandable_segments: True")}  # torch takes both
ENVIRONMENTS = {
    "old-name": {OLD: ON},
    "new-name": {NEW: ON},
    "both": {OLD: ON, NEW: ON},
    "first": {OLD: f"{ON},{OTHERS}"},
    "last": {NEW: f"{OTHERS},{ON}"},
    "spaces": {OLD: f" expandable_segments : True , {OTHERS}"},
    "twice": {OLD: f"expandable_segments:False,{OTHERS},{ON}"},
    "others-only": {NEW: OTHERS},
    "none": {},
}


def configure(model):
    """vLLM checks a configuration whose KV cache another engine reads: no GPU is needed for that."""
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    connector = KVTransferConfig(kv_connector="NixlConnector", kv_role="kv_both")
    EngineArgs(model=str(model), max_model_len=128, kv_transfer_config=connector).create_engine_config()


@pytest.fixture
def environment(monkeypatch):
    """Start with no allocator options: ``environment(variables)`` sets some."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def put(variables):
        for name in (OLD, NEW):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    put({})
    return put


@pytest.mark.reproduces("expandable-segments")
def test_refused_by_the_name_that_is_looked_at(tiny_qwen, environment):
    environment({OLD: ON})
    with act():
        configure(tiny_qwen.directory)


@pytest.mark.reproduces("expandable-segments")
@pytest.mark.parametrize("unseen", UNSEEN)
def test_let_through_where_nobody_looks(tiny_qwen, environment, unseen):
    name, value = UNSEEN[unseen]
    environment({name: value})
    refusal = ""
    with act():
        try:
            configure(tiny_qwen.directory)
        except ValueError as error:
            refusal = str(error)
            if "expandable_segments" not in refusal:
                raise
    if not refusal:
        silent(f"{name}='{value}' switches expandable segments on, and vLLM takes a KV connector with it")


@contextmanager
def pool_opened(monkeypatch):
    """vLLM's sleeping memory pool on a machine without its C extension: yields torch's options while it is open."""
    from vllm.device_allocator import cumem

    @contextmanager
    def extension(*callbacks):
        yield SimpleNamespace(snapshot=list), None

    monkeypatch.setattr(cumem, "use_memory_pool_with_allocator", extension)
    allocator = cumem.CuMemAllocator()
    # Before 2.12 torch does not say its options: they are those of the environment.
    told = getattr(torch._C, "_accelerator_getAllocatorSettings", lambda: f"{os.getenv(OLD)},{os.getenv(NEW)}")
    with allocator.use_memory_pool("weights"):
        yield told()


@pytest.mark.guards("expandable-segments", fidelity="stand-in")
@pytest.mark.parametrize("variables", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_cleared_environment(tiny_qwen, environment, monkeypatch, subject, variables):
    outside = {"PATH": "/bin", **variables}
    cleared = subject(outside)
    assert outside == {"PATH": "/bin", **variables}, "the caller's environment was changed"
    kept = {name: cleared.pop(name).replace(" ", "") for name in (OLD, NEW) if name in cleared}
    assert cleared == {"PATH": "/bin"}
    assert kept == {name: OTHERS for name, value in variables.items() if OTHERS in value}
    environment(kept)
    configure(tiny_qwen.directory)
    with pool_opened(monkeypatch) as options:
        assert "expandable_segments:True" not in options


def sleep_and_wake(model):
    """Real sleep mode: what is generated before sleep and after."""
    with vllm_engine.start(model, enable_sleep_mode=True) as engine:
        answers = []
        for _ in range(2):
            [completion] = engine.generate([[100] * 8], 8, temperature=0.0, ignore_eos=True)
            answers.append(completion.ids)
            engine.llm.sleep(level=1)
            engine.llm.wake_up()
    assert answers[0] == answers[1]


@GPU
@pytest.mark.isolated(env={OLD: ON})
@pytest.mark.reproduces("expandable-segments")
def test_sleep_on_gpu(tiny_qwen):
    sleep_and_wake(tiny_qwen.directory)


@GPU
@pytest.mark.isolated
@pytest.mark.guards("expandable-segments")
def test_sleep_on_gpu_in_cleared_environment(tiny_qwen, environment, subject):
    environment(
        {name: value for name, value in subject({**os.environ, OLD: ON, NEW: ON}).items() if name in (OLD, NEW)}
    )
    sleep_and_wake(tiny_qwen.directory)
