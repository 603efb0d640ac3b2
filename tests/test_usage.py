"""What the reports of contained tests tell of their processes: peak memory by name, and libraries that are new."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_rlregress.containment import usage
from pytest_rlregress.util.processes import name_of

MIB = 2**20
# Writes down what the pytest process hears of each phase of a test.
HEARD = """
import json

def pytest_runtest_logreport(report):
    with open("heard.jsonl", "a") as file:
        print(json.dumps([report.location[2], report.when, dict(report.user_properties)]), file=file)
"""


@pytest.fixture
def said(run, pytester):
    """Run tests; what their reports say under a key, by test and phase, and under "" how the run went."""

    def said(key, body, *options, conftest=HEARD):
        pytester.makeconftest(conftest)
        files = {"test_it": f"import os, subprocess, sys, time, pytest\n{body}"}
        result = run(files, "-p", "no:cacheprovider", *options)
        heard = [json.loads(line) for line in (pytester.path / "heard.jsonl").read_text().splitlines()]
        # Children hear their own reports too, before they are given what their tests used.
        found = {
            (test, when): json.loads(of[f"rlregress_{key}"]) for test, when, of in heard if f"rlregress_{key}" in of
        }
        return {**found, "": result}

    return said


SHARED = """
pytestmark = pytest.mark.isolated(group="g")

@pytest.fixture(scope="session")
def engine():
    script = "import sys; held = b'x' * (150 << 20); del held; print(1, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["VLLM::EngineCore", "-c", script], executable=sys.executable, **pipes) as process:
        process.stdout.readline()
        yield
        process.kill()

def test_first(engine): assert b"x" * (300 << 20)
def test_second(): pass
"""


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["alone", "xdist"])
def test_tests_of_one_child_have_each_its_own_peak(said, workers):
    peaks = said("peak_memory", SHARED, *workers)
    peaks.pop("").assert_outcomes(passed=2)
    assert {when for _, when in peaks} == {"call", "teardown"}
    first, second = peaks["test_first", "call"], peaks["test_second", "call"]
    assert [*first] == ["test", "VLLM::EngineCore"] == [*second]
    assert 300 * MIB < first["test"] < 500 * MIB
    assert 150 * MIB < first["VLLM::EngineCore"] < 300 * MIB
    assert second["test"] < 200 * MIB
    assert second["VLLM::EngineCore"] < 100 * MIB


def test_without_setting_back_they_would_not(said):
    # 1 forgets which pages were referenced, and leaves the high-water mark alone.
    broken = f"{HEARD}\nfrom pytest_rlregress.containment import usage\nusage._SET_BACK = b'1'\n"
    peaks = said("peak_memory", SHARED, conftest=broken)
    assert peaks["test_second", "call"]["test"] > 300 * MIB
    assert peaks["test_second", "call"]["VLLM::EngineCore"] > 150 * MIB


def test_peaks_are_told_by_name_and_junit_has_them(said, pytester):
    Path(pytester.path, "hog.py").write_text(
        "import sys\nheld = b'x' * (int(sys.argv[1]) << 20)\nprint(1, flush=True)\nsys.stdin.read()\n"
    )
    peaks = said(
        "peak_memory",
        """
def start(*command):
    process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process

@pytest.mark.isolated
def test_it():
    hogs = [start("hog.py", "40"), start("-u", "hog.py", "160"), start("hog.py", "80")]
    short = start("-c", "import time; held = b'x' * (120 << 20); print(1, flush=True); time.sleep(1)")
    pid = os.fork()
    if pid == 0:
        held = b"x" * (60 << 20)
        time.sleep(99)
    short.wait()
    for hog in hogs[:2]:
        hog.kill(); hog.wait()
    os.kill(pid, 9); os.waitpid(pid, 0)
    hogs[2].kill(); hogs[2].wait()

def test_not_contained(): pass
""",
        "--junitxml=out.xml",
    )
    peaks.pop("").assert_outcomes(passed=2)
    assert {test for test, _ in peaks} == {"test_it"}
    found = peaks["test_it", "call"]
    assert next(iter(found)) == "test"
    assert {"hog.py", "fork of the test", Path(sys.executable).name} < {*found}
    assert 160 * MIB < found["hog.py"] < 200 * MIB
    assert 120 * MIB < found[Path(sys.executable).name] < 160 * MIB
    assert 60 * MIB < found["fork of the test"] < 250 * MIB
    [junit] = [
        json.loads(entry.get("value"))
        for entry in ET.parse(pytester.path / "out.xml").iter("property")
        if entry.get("name") == "rlregress_peak_memory"
    ]
    assert junit == found


DIES = """
pytestmark = pytest.mark.isolated

def take_and_wait(seconds):
    held = b"x" * (300 << 20)
    time.sleep(seconds)

def test_killed(): take_and_wait(1.2); os.kill(os.getpid(), 9)
def test_crashes(): take_and_wait(1.2); os.abort()
@pytest.mark.isolated(timeout=3)
def test_hangs(): take_and_wait(99)
@pytest.mark.isolated(memory="200MiB")
def test_takes_too_much(): take_and_wait(99)
def test_skips(): pytest.skip("not today")
def test_patches(monkeypatch): monkeypatch.setattr("os.listdir", None)
"""


def test_one_that_does_not_live_has_what_was_seen_last(said):
    peaks = said("peak_memory", DIES)
    peaks.pop("").assert_outcomes(failed=4, skipped=1, passed=1)
    for test in ("test_killed", "test_crashes", "test_hangs", "test_takes_too_much"):
        assert peaks[test, "call"] == peaks[test, "teardown"]
        assert 200 * MIB < peaks[test, "call"]["test"] < 500 * MIB
    assert peaks["test_skips", "call"]["test"] < 200 * MIB


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


def test_libraries_are_said_once(said, pytester):
    libraries = said("libraries", LOADS)
    libraries.pop("").assert_outcomes(passed=5, failed=1)

    def one(path):
        version = path.rpartition(".so.")[2]
        return [{"path": f"{pytester.path}/{path}", "version": version}]

    assert {test: value for (test, when), value in libraries.items() if when == "call"} == {
        "test_first": {"libnccl": one("one/libnccl.so.2.21.5")},
        "test_more": {"libnccl": one("two/libnccl.so.2.21.5"), "libcublas": one("one/libcublas.so.12.4.5.8")},
        "test_fails": {"libcudart": one("one/libcudart-d0da41ae.so.11.0")},
    }


# The driver's table has what the test's process and its descendant hold, and that of somebody else.
TWO_CARDS = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_leaks_gpu import FakeNvml
from pytest_rlregress.containment import gpu_memory
sys.modules["pynvml"] = FakeNvml()
gpu_memory._NVIDIA = Path("/dev/null")
"""
ON_GPUS = """
@pytest.fixture
def held():
    gpus = sys.modules["pynvml"].held
    with subprocess.Popen(["VLLM::Worker_TP0", "99"], executable="/bin/sleep") as process:
        while not open(f"/proc/{process.pid}/cmdline").read():  # it is still becoming sleep
            time.sleep(0.01)
        gpus[0].update({os.getpid(): 1 << 30, process.pid: 5 << 30, 1: 7 << 30})
        gpus[1].update({process.pid: 6 << 30})
        yield gpus
        for gpu in gpus:
            gpu.clear()
        process.kill()

@pytest.mark.isolated
@pytest.mark.hw(count=2)
def test_it(held): pass

@pytest.mark.isolated
@pytest.mark.hw(count=2)
def test_broken(held):
    sys.modules["pynvml"].broken = True
"""


def test_gpu_memory_of_a_process_stands_beside_its_other(said, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    Path(pytester.path, "two_cards.py").write_text(TWO_CARDS)
    peaks = said("peak_memory", ON_GPUS, "-p", "two_cards", ".")  # --hw=cpu would hide them
    peaks.pop("").assert_outcomes(passed=2)
    found = peaks["test_it", "call"]
    assert [*found] == ["test", "VLLM::Worker_TP0 (GPU)", "test (GPU)", "VLLM::Worker_TP0"]
    assert (found["test (GPU)"], found["VLLM::Worker_TP0 (GPU)"]) == (2**30, 11 * 2**30)
    assert {*peaks["test_broken", "call"]} == {"test", "VLLM::Worker_TP0"}


@pytest.fixture
def full_pipe():
    """Whoever writes into it waits."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["VLLM::EngineCore_DP0"], "VLLM::EngineCore_DP0"),
        (["ray::Rollout.generate"], "ray::Rollout"),
        (["ray::train()"], "ray::train"),
        (["ray-dashboard-JobHead-0 (/x/python -c 'import y')"], "ray-dashboard-JobHead-0"),
        (["nginx: worker process"], "nginx"),
        (["/opt/my env/raylet", "--port=1"], "raylet"),
        (["/x/python3.11", "-u", "/x/ray/log_monitor.py", "--logs"], "log_monitor.py"),
        (["/x/python", "-X", "dev", "-m", "vllm.entrypoints.openai.api_server"], "vllm.entrypoints.openai.api_server"),
        (["/x/python", "/x/bin/vllm", "serve"], "vllm"),
        (["python", "train.py"], "train.py"),
        (["/x/python", "-Wdefault", "-c", "import a"], "python"),
        (["/x/python", "-B", "-c", "from multiprocessing.spawn import spawn_main; x"], "multiprocessing.spawn"),
        (["/x/python"], "python"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names(full_pipe, command, name):
    with subprocess.Popen(command, executable="/bin/echo", stdout=full_pipe) as process:
        deadline = time.monotonic() + 10
        while not (found := name_of(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)  # an exec that has begun has no command line yet
        process.kill()
    assert found == name


def test_names_of_the_dead():
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert name_of(process.pid) == ""
        assert usage.look(process.pid, process.pid, {}) == []
    assert name_of(process.pid) == ""


def test_looking_takes_a_small_part_of_the_time(monkeypatch):
    looks = []

    def slow(test, reaper, known):
        looks.append(time.monotonic())
        time.sleep(0.02)
        return []

    monkeypatch.setattr(usage, "look", slow)
    seen, begun = usage.Usage(), time.monotonic()
    seen.look(os.getpid(), os.getpid())
    assert not looks, "the test before is still what there is to see"
    seen.begin()
    while len(looks) < 2 and time.monotonic() < begun + 60:
        seen.look(os.getpid(), os.getpid())
        time.sleep(0.01)
    assert looks[1] - looks[0] >= 1
