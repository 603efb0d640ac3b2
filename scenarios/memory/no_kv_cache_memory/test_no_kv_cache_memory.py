import json
import shutil

import pytest
from packaging.version import Version

from pytest_rlregress.failures.act import act
from pytest_rlregress.fixtures import trl_engine, vllm_engine
from pytest_rlregress.stack import InterfaceMissing, versions
from pytest_rlregress.stack.lazy import torch

pytestmark = pytest.mark.needs("vllm-engine")
PROMPT, RESPONSE = 64, 64
LONGEST = 3 << 19  # tokens, a KiB each in float32: more than any cache that the tests give
NO_ROOM = {
    "own-maximum": {"max_model_len": None},
    "nothing-left": {"kv_cache_memory_bytes": 1},
    "share": {"gpu_memory_utilization": 1e-4},  # of the memory that a process has anyway
}


@pytest.fixture(scope="module")
def long_model(tiny_qwen, tmp_path_factory):
    """Return the folder of ``tiny_qwen`` with a context as long as models have today."""
    folder = tmp_path_factory.mktemp("long") / "model"
    shutil.copytree(tiny_qwen.directory, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": LONGEST}))
    return folder


@pytest.fixture
def start(long_model):
    """``start(**engine_arguments)``: vLLM on that model."""
    from vllm import LLM  # noqa: F401 - what start takes

    def start(**arguments):
        by_bytes = arguments.keys() & {"kv_cache_memory_bytes", "gpu_memory_utilization"}
        vllm = versions()["vllm"]
        if by_bytes and not torch.cuda.is_available() and Version(vllm) < Version("0.22"):
            [name] = by_bytes
            raise InterfaceMissing(f"needs {name} on a CPU, which vllm {vllm} doesn't have")
        return vllm_engine.start(long_model, max_num_seqs=4, **arguments)

    return start


@pytest.mark.reproduces("no-kv-cache-memory")
@pytest.mark.parametrize("form", NO_ROOM)
def test_engine_without_room(start, form):
    starting = start(**NO_ROOM[form])
    with act(), starting:
        pass


@pytest.mark.hw("cpu")  # TRL's share of a card has room for this model
@pytest.mark.isolated
@pytest.mark.reproduces("no-kv-cache-memory")
@pytest.mark.needs("trl-trainer")
def test_trl_engine_of_the_models_length(long_model):
    starting = trl_engine.prepare(long_model)
    with act(), starting:
        pass


@pytest.mark.guards("no-kv-cache-memory")
def test_length_of_prompt_and_response(start):
    starting = start(max_model_len=PROMPT + RESPONSE)
    with act(), starting as engine:
        [completion] = engine.generate([[100] * PROMPT], RESPONSE, temperature=0.0, ignore_eos=True)
        assert len(completion.ids) == RESPONSE


@pytest.mark.isolated
@pytest.mark.guards("no-kv-cache-memory")
@pytest.mark.needs("trl-trainer")
def test_trl_engine_by_its_key(long_model):
    lengths = {"max_model_length": PROMPT + RESPONSE, "max_completion_length": RESPONSE}
    starting = trl_engine.prepare(long_model, generation_kwargs={"ignore_eos": True}, **lengths)
    with act(), starting as generation:
        _, completions, *_ = generation.generate([[100] * PROMPT], None, 1)
        assert [len(ids) for ids in completions] == [RESPONSE]
