"""A machine without a key."""

import os

import pytest


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A rented machine: no key in the environment, in a netrc file or in settings."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path))
    return tmp_path
