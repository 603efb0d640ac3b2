from contextlib import suppress

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.launch.vllm_server_unreachable.front_door import (
    CLOSED,
    answering,
    nobody,
    refuse_past,
)

pytestmark = pytest.mark.needs("trl-trainer", "vllm-engine")
#: Newer clients ask for the server's configuration.
SERVER_INFO = pytest.mark.needs("trl.generation.vllm_client:VLLMClient.get_server_info")
LIMIT = 1  # seconds, of vllm_server_timeout; the client asks every two
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def connect(monkeypatch):
    """Make TRL's client of the server at an address, with the proxy settings that a test gives."""
    try:
        from trl.generation.vllm_client import VLLMClient
    except ImportError:
        from trl.extras.vllm_client import VLLMClient  # TRL before 0.28

    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)

    def connect(address, limit=LIMIT, **settings):
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        return VLLMClient(base_url=address, connection_timeout=limit)

    return connect


@pytest.mark.reproduces("vllm-server-unreachable")
@pytest.mark.parametrize("where", ["server", "proxy"])
def test_nobody_listens(connect, where):
    with nobody() as address, act():
        if where == "server":
            connect(address)
        else:
            connect("http://gpu-node:8000", http_proxy=address)


@pytest.mark.reproduces("vllm-server-unreachable", fidelity="injected")
def test_proxy_answers_for_it(connect):
    """Only a client that asks again after an answer past its limit gets to a 200."""
    with answering(refuse_past(LIMIT)) as door, act(), suppress(OSError):  # what the limit is for
        connect("http://gpu-node:8000", http_proxy=door.address)
        silent(f"asked on after an answer that came later than the limit of {LIMIT} s")


@pytest.mark.guards("vllm-server-unreachable")
@pytest.mark.parametrize("statuses", [[], [CLOSED], [503]], ids=["running", "not-up-yet", "503"])
def test_server_that_comes_up_late(connect, vllm_server, statuses):
    with answering(statuses, vllm_server.base_url) as door, act():
        assert connect(door.address, limit=240).base_url == door.address
        assert door.asked[len(statuses)].startswith("/health"), "it was not asked whether it is up"


@pytest.mark.guards("vllm-server-unreachable")
def test_no_proxy_names_the_host(connect, vllm_server):
    address = vllm_server.base_url
    with answering([503]) as proxy, act():
        connect(address, http_proxy=proxy.address, NO_PROXY="127.0.0.1")
    assert proxy.asked == []


@SERVER_INFO
@pytest.mark.guards("vllm-server-unreachable")
def test_server_with_its_endpoints(connect, vllm_server):
    """The fixture's server has ``VLLM_SERVER_DEV_MODE=1`` and no --weight-transfer-config."""
    client = connect(vllm_server.base_url)
    with act():
        answer = client.generate([[100] * 8], n=2, max_tokens=4)
        assert [len(ids) for ids in answer["completion_ids"]] == [4, 4]
        assert client.get_server_info()["model_config"]["max_model_len"] == 4096
        with pytest.raises(RuntimeError, match="--weight-transfer-config"):
            client.init_communicator(device="cpu")


@SERVER_INFO
@pytest.mark.guards("vllm-server-unreachable", fidelity="injected")
def test_missing_endpoints_are_named(connect):
    with answering([200, 200, 404]) as door:  # for /health, /v1/models and /server_info
        client = connect(door.address)
        with act(), pytest.raises(RuntimeError, match="VLLM_SERVER_DEV_MODE=1"):
            client.get_server_info()
