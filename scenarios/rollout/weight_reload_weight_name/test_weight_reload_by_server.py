"""New weights for a running server, by its endpoints: refused, or an old head and an old cache without an error."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from pytest_rlregress import remedies
from pytest_rlregress.agreement.logprobs import mean_gap, token_logprobs
from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.fixtures.waiting import wait_for_condition
from pytest_rlregress.remedies.rollout import reload_weights_by_server
from pytest_rlregress.scenarios.rollout.weight_reload_weight_name.new_weights import (
    LONG,
    SEQUENCES,
    after_an_update,
    generated_by_server,
    logprobs_of,
    requests_run,
    save,
    scored_by_server,
    tolerance,
)
from pytest_rlregress.stack import InterfaceMissing, versions
from pytest_rlregress.stack.lazy import torch

CPU = pytest.mark.hw("cpu")
GENERATED = 8  # tokens


@pytest.fixture(scope="module")
def running(vllm_server, tiny_qwen):
    """The folder's server, which gets its weights back."""
    yield vllm_server
    with suppress(RuntimeError):  # a vLLM that takes none
        reload_weights_by_server(vllm_server.base_url, tiny_qwen.model().named_parameters())


@pytest.fixture
def server(running, tiny_qwen, monkeypatch):
    """The same, with its first weights."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        reload_weights_by_server(running.base_url, tiny_qwen.model().named_parameters())
    except RuntimeError as error:
        if "argument 'weights_path'" not in running.log():
            raise
        missing = "needs reload_weights(weights_path=…) of the worker"
        raise InterfaceMissing(f"{missing}, which vllm {versions()['vllm']} doesn't have") from error
    return running


@pytest.fixture
def trained(tiny_qwen):
    return after_an_update(tiny_qwen.model())


def call(server, method, **arguments):
    """The failing act: let the worker do something, as a trainer's client does."""
    import requests

    body = {"method": method, "kwargs": arguments}
    requests.post(f"{server.base_url}/collective_rpc", json=body, timeout=60).raise_for_status()


def check_has(server, model):
    """Scoring never uses the cache, generation may: both are of the model."""
    off = mean_gap(scored_by_server(server, SEQUENCES), logprobs_of(model))
    if not off < tolerance():
        silent(f"{off:.3f} nats a token from the model with the new weights, and no error")
    ids, logprobs = generated_by_server(server, [LONG], GENERATED)[0]
    [wanted] = token_logprobs(model, [LONG + ids])
    off = mean_gap([logprobs], [wanted[-len(ids) :]])
    if not off < tolerance():
        silent(f"{off:.3f} nats a token from the model with the new weights, and no error: cached")


@CPU
@pytest.mark.reproduces("weight-reload-weight-name", fidelity="stand-in")
def test_extension_of_a_trainer(running, trained, tmp_path):
    with act():
        call(running, "update_weights_from_folder", folder=save(trained, tmp_path, with_head=True))
        check_has(running, trained)


@CPU
@pytest.mark.reproduces("weight-reload-weight-name")
@pytest.mark.parametrize("with_head", [False, True], ids=["head-not-saved", "cache-kept"])
def test_reload_from_a_folder(server, trained, tmp_path, with_head):
    generated_by_server(server, [LONG], GENERATED)
    with act():
        call(server, "reload_weights", weights_path=save(trained, tmp_path, with_head))
        check_has(server, trained)


@pytest.mark.guards("weight-reload-weight-name")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_update_arrives(server, tiny_qwen, trained, tmp_path, dtype):
    with act():
        for model in (trained, tiny_qwen.model(), trained):
            weights = [(name, tensor.to(getattr(torch, dtype))) for name, tensor in model.named_parameters()]
            remedies.reload_weights_by_server(server.base_url, iter(weights), tmp_path)
            check_has(server, model)
    assert not list(tmp_path.iterdir()), "left in the folder"
    with pytest.raises(FileNotFoundError):
        remedies.reload_weights_by_server(server.base_url, iter(weights), tmp_path / "none")


@pytest.mark.guards("weight-reload-weight-name")
def test_refusals_are_told(server, tiny_qwen, trained):
    with act(), pytest.raises(RuntimeError, match="VLLM_SERVER_DEV_MODE"):
        remedies.reload_weights_by_server(f"{server.base_url}/v1", trained.named_parameters())
    check_has(server, tiny_qwen.model())
    with pytest.raises(RuntimeError, match="no module or parameter named"):
        remedies.reload_weights_by_server(server.base_url, [("no.such.weight", torch.ones(1))])
    remedies.reload_weights_by_server(server.base_url, trained.named_parameters())
    check_has(server, trained)


@pytest.mark.guards("weight-reload-weight-name")
def test_update_while_requests_run(server, trained):
    updated = Event()

    def generate_until_updated():
        answers = []
        while not updated.is_set():
            answers += generated_by_server(server, [[token] * 8 for token in range(32)], 240)
        return answers

    generated_by_server(server, [LONG], GENERATED)
    with act(), ThreadPoolExecutor(1) as pool:
        running = pool.submit(generate_until_updated)
        try:
            wait_for_condition(lambda: requests_run(server), interval=0.02)
            remedies.reload_weights_by_server(server.base_url, trained.named_parameters())
        finally:
            updated.set()
    assert all(len(ids) == 240 for ids, _ in running.result())
    check_has(server, trained)
