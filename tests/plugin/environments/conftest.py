"""Environments that real uv resolves and builds offline, from a folder of tiny distributions."""

from __future__ import annotations

import os

import pytest

from pytest_rlregress.environments.environment import Environments


@pytest.fixture
def own_uv(tmp_path, monkeypatch):
    """uv has a cache of its own, and no other configuration."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest.fixture
def index(own_uv, tmp_path):
    """A folder of distributions."""
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


@pytest.fixture
def environments(index, tmp_path):
    """Make one: ``environments(offline=False)``."""
    made = []

    def make(**options):
        settings = {"UV_DEFAULT_INDEX": "file:///nonexistent", "UV_FIND_LINKS": str(index)}
        options = {"offline": True, **options}
        made.append(Environments(tmp_path / "environments", settings=settings, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
