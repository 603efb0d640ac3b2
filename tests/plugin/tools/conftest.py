from __future__ import annotations

import importlib

import pytest
from installed import CHECKOUT


@pytest.fixture
def script(monkeypatch):
    """A script of tools/, by name."""
    monkeypatch.syspath_prepend(CHECKOUT / "tools")
    return importlib.import_module
