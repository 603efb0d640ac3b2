"""The warm server can be forked whatever the stack starts when it is imported, and sees no GPU."""

from __future__ import annotations

import os

import needs
import pytest

from pytest_rlregress.containment.pool import WarmServer

STARTS_A_PROCESS = """
import os, subprocess, sys, threading, time
if os.environ.get("HUMMING_DISABLE_PARALLEL_BUILD") != "1":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""


@pytest.fixture
def ready(temporary, monkeypatch):
    """What a server says that has imported a module."""
    monkeypatch.syspath_prepend(temporary)

    def ready(module, body=None, **variables):
        if body is not None:
            (temporary / f"{module}.py").write_text(body)
        server = WarmServer((module,), {**os.environ, **variables}, temporary / "log")
        try:
            return server.ready(print), server.safe(print)
        finally:
            server.close()

    return ready


@pytest.mark.parametrize("set_by_the_user", [None, "active"])
def test_waiting_threads_leave_the_cores_to_others(ready, monkeypatch, set_by_the_user):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    body = f"import os\nassert os.environ['OMP_WAIT_POLICY'] == {set_by_the_user or 'passive'!r}"
    said, _ = ready("waiting", body, **({"OMP_WAIT_POLICY": set_by_the_user} if set_by_the_user else {}))
    assert said["failed"] == {}


def test_names_a_module_that_fails(ready):
    said, _ = ready("fails", "raise ValueError('no')")
    assert said["failed"] == {"fails": "ValueError: no"}


def test_server_with_a_thread_is_unsafe_to_fork(ready):
    said, safe = ready("threaded", STARTS_A_PROCESS.replace("HUMMING", "NOBODY"))
    assert (said["threads"], safe) == (2, False)


def test_vllms_cuda_wheel_builds_nothing_meanwhile(ready):
    said, safe = ready("humming", STARTS_A_PROCESS)
    assert (said["threads"], safe) == (1, True)


@needs.stack
def test_pyarrow_starts_no_thread(ready):
    said, safe = ready("pyarrow")
    assert (said["failed"], said["threads"], safe) == ({}, 1, True)


def test_server_ignores_the_choice_of_gpus(ready):
    body = "import os\nassert 'CUDA_VISIBLE_DEVICES' not in os.environ"
    said, _ = ready("looks", body, CUDA_VISIBLE_DEVICES="MIG-4e7b3d0a-0000-0000-0000-000000000000")
    assert said["failed"] == {}


def test_children_get_the_choice_of_gpus(run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    body = (
        "import os, pytest\n@pytest.mark.isolated\ndef test_it(): assert os.environ['CUDA_VISIBLE_DEVICES'] == VALUE\n"
    )
    run(body.replace("VALUE", "'7'")).assert_outcomes(passed=1)
    run(body.replace("VALUE", "''"), "--hw=cpu", "test_it.py").assert_outcomes(passed=1)


def test_a_run_on_the_cpu_leaves_the_variable_as_it_was(pytester, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    pytester.makepyfile(test_it="import os\ndef test_it(): assert os.environ['CUDA_VISIBLE_DEVICES'] == ''")
    pytester.inline_run("--hw=cpu", "test_it.py").assertoutcome(passed=1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
