"""Marks of tests that need what not every environment of `make matrix` has."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

stack = pytest.mark.skipif(find_spec("torch") is None, reason="needs the stack")


def plugin(module):
    """Skip a test without another pytest plugin, unless this environment promises to have them all."""
    missing = find_spec(module) is None and "RLREGRESS_TEST_PLUGINS" not in os.environ
    return pytest.mark.skipif(missing, reason=f"needs {module}: make matrix has it")
