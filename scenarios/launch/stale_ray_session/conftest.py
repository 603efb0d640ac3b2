"""Addresses at which no cluster answers."""

import socket
import tempfile
from contextlib import closing
from pathlib import Path

import pytest


@pytest.fixture
def closed():
    """An address on this machine at which nobody listens."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def temporary(monkeypatch):
    """The folder that Ray takes for /tmp; no other cluster's address is seen."""
    # The path of a Unix socket inside may have 107 bytes, of which Ray takes some 70.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)
