"""What the reports of contained tests say of the native libraries that their processes mapped."""

from __future__ import annotations

import json

# Writes down what the pytest process hears of each phase of a test.
HEARD = """
import json

def pytest_runtest_logreport(report):
    with open("heard.jsonl", "a") as file:
        print(json.dumps([report.location[2], report.when, dict(report.user_properties)]), file=file)
"""


PHASES = ("setup", "call", "teardown")

# A real library by the name of one that matters.
LOADS = """
import ctypes, shutil

def load(name):
    [real] = {line.split()[-1] for line in open("/proc/self/maps") if "/libm.so" in line or "/libm-" in line}
    os.makedirs(os.path.dirname(name), exist_ok=True)
    shutil.copy(real, name)
    ctypes.CDLL(os.path.abspath(name))

@pytest.fixture
def engine():
    script = "import sys, test_it; test_it.load('one/libcublas.so.12.4.5.8'); print(1, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as process:
        process.stdout.readline()
        yield
        process.kill()

def test_not_contained(): load("plain/libnccl.so.2.0")

@pytest.mark.isolated(group="g")
def test_first(): load("one/libnccl.so.2.21.5")

@pytest.mark.isolated(group="g")
def test_again(): pass

@pytest.mark.isolated(group="g")
def test_more(engine): load("two/libnccl.so.2.21.5")

@pytest.mark.isolated
def test_in_another_child(engine): load("one/libnccl.so.2.21.5")

@pytest.mark.isolated
def test_fails():
    load("one/libcudart-d0da41ae.so.11.0")
    assert 0
"""


def test_libraries_are_said_once_a_child(run, pytester):
    pytester.makeconftest(HEARD)
    body = f"import os, subprocess, sys, pytest\n{LOADS}"
    run({"test_it": body}, "-p", "no:cacheprovider").assert_outcomes(passed=5, failed=1)
    heard = [json.loads(line) for line in (pytester.path / "heard.jsonl").read_text().splitlines()]

    def one(path):
        version = path.rpartition(".so.")[2]
        return [{"path": f"{pytester.path}/{path}", "version": version}]

    name = "rlregress_libraries"
    found = {
        when: {test: json.loads(of[name]) for test, at, of in heard if at == when and name in of} for when in PHASES
    }
    assert found["setup"] == {}
    assert found["call"] == found["teardown"]  # which junit reads
    assert found["call"] == {
        "test_first": {"libnccl": one("one/libnccl.so.2.21.5")},
        "test_in_another_child": {
            "libnccl": one("one/libnccl.so.2.21.5"),
            "libcublas": one("one/libcublas.so.12.4.5.8"),
        },
        "test_more": {"libnccl": one("two/libnccl.so.2.21.5"), "libcublas": one("one/libcublas.so.12.4.5.8")},
        "test_fails": {"libcudart": one("one/libcudart-d0da41ae.so.11.0")},
    }
