"""A hub that does not answer is no reason to refuse an id."""

import socket

import pytest

from pytest_rlregress.scenarios.models import loopback_hub
from pytest_rlregress.scenarios.models.model_id_not_on_hub.test_model_id_not_on_hub import MEANT


def test_hub_that_is_down_is_no_wrong_id(subject, monkeypatch):
    monkeypatch.setenv("NO_PROXY", loopback_hub.NO_PROXY)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(Exception) as raised:  # noqa: PT011 - of requests or of httpx
        subject(MEANT, closed)
    assert not isinstance(raised.value, ValueError), f"blames the id: {raised.value}"
