"""Tests that start no process, but for those marked so, and import none of the stack: an editor runs them all."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
STACK = {"ray", "tensordict", "torch", "transformers", "trl", "verl", "vllm"}
_watched = False


def _refuse(event, arguments):
    if _watched and event in STARTS:
        raise RuntimeError(f"a unit test starts a process ({arguments[0]}): it belongs in tests/plugin or tests/stack")
    if _watched and event == "import" and arguments[0].partition(".")[0] in STACK:
        raise RuntimeError(f"a unit test imports {arguments[0]}: it belongs in tests/stack")


sys.addaudithook(_refuse)


@contextmanager
def _watch():
    global _watched
    _watched = True
    try:
        yield
    finally:
        _watched = False


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    with _watch() if Path(__file__).parent in collector.path.parents else nullcontext():
        return (yield)


@pytest.fixture(autouse=True)
def watched(request):
    """Refuse processes and the stack, unless the test says that it starts one."""
    with nullcontext() if request.node.get_closest_marker("process") else _watch():
        yield
