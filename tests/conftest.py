from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest on test files in a process of its own: ``run("body", "--opt")`` or ``run({"name": "body"}, …)``."""
    for name in ("RLREGRESS_HW", "RLREGRESS_TIMEOUT", "RLREGRESS_REQUIRE", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(files, *args):
        files = files if isinstance(files, dict) else {"test_it": files}
        if files:
            pytester.makepyfile(**files)
        return pytester.runpytest_subprocess(*args, timeout=120)

    return run
