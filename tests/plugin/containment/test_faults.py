"""The fault matrix: every way a test can end, alone and under xdist: told of the right test, and nothing survives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from itertools import pairwise
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from patience import PATIENCE

from matrix import MARK, Run, end, mapped, marked

# Before each of them, in a file of its own: a test that must pass; and another one after it.
HEAD = """
import ctypes, os, signal, subprocess, sys, threading, time, warnings
import pytest

LIBC = ctypes.CDLL(None)
pytestmark = pytest.mark.isolated(group=__name__, timeout=600)

def test_before(): print("neighbour")
{body}
def test_after(): print("neighbour")
"""
PYTHON = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
DAEMON = """
    subprocess.run([sys.executable, "-c", "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(600)"])
"""
FRAME = r"in wait_for_ever\b|wait_for_ever \("
# name: (test, what junit says of it, what its text must have)
FAULTS = {
    "divide": ("LIBC.div(1, 0)", "failure", r"died of SIGFPE[\s\S]*in test_fault"),
    "null": ("ctypes.string_at(0)", "failure", r"died of SIGSEGV[\s\S]*in string_at"),
    "double_free": (
        "LIBC.malloc.restype = ctypes.c_void_p; p = ctypes.c_void_p(LIBC.malloc(64)); LIBC.free(p); LIBC.free(p)",
        "failure",
        r"(?=[\s\S]*died of SIGABRT)[\s\S]*double free",
    ),
    "bus": (
        "import mmap; f = open(__file__ + '.map', 'wb+'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096)\n"
        "    f.truncate(0); m[0]",
        "failure",
        r"died of SIGBUS",
    ),
    "killed": ("subprocess.run(f'kill -9 {os.getpid()}', shell=True)", "failure", r"died of SIGKILL[\s\S]*memory"),
    "exit_0": ("os._exit(0)", "failure", r"exit code 0 in the middle of the test"),
    "exit_3": ("os._exit(3)", "failure", r"exit code 3 in the middle of the test"),
    "sys_exit": ("sys.exit(5)", "failure", r"SystemExit: 5"),
    "python_hang": ("wait_for_ever()", "failure", rf"no end after [\d.]+ s[\s\S]*{FRAME}"),
    "gil_hang": ("ctypes.PyDLL(None).sleep(600)", "failure", r"no end after [\d.]+ s[\s\S]*test_fault"),
    "deadlock": (
        "a, b = threading.Lock(), threading.Lock()\n"
        "    def first():\n        with a: time.sleep(0.3); b.acquire()\n"
        "    def second():\n        with b: time.sleep(0.3); a.acquire()\n"
        "    threads = [threading.Thread(target=t, daemon=True) for t in (first, second)]\n"
        "    for t in threads: t.start()\n    for t in threads: t.join()",
        "failure",
        r"(?=[\s\S]*\bfirst\b)(?=[\s\S]*\bsecond\b)[\s\S]*no end after [\d.]+ s",
    ),
    "grandchild_hang": (
        "code = 'import time\\ndef wait_for_ever(): time.sleep(600)\\nwait_for_ever()'\n"
        "    subprocess.run([sys.executable, '-c', code])",
        "failure",
        rf"no end after [\d.]+ s[\s\S]*{FRAME}",
    ),
    "output": ("for _ in range(100): print('x' * 10**6)", "passed", r""),
    "output_then_death": ("for _ in range(100): print('x' * 10**6)\n    os.abort()", "failure", r"SIGABRT"),
    "closed_output": ("os.close(1); os.close(2); sys.stdout.close(); sys.stderr.close()", "passed", r""),
    "printed_before_death": ("print('last words'); os.abort()", "failure", r"SIGABRT[\s\S]*last words"),
    "unpicklable": ("raise type('Odd', (Exception,), {'lock': threading.Lock()})(lambda: 1)", "failure", r"Odd"),
    "str_raises": ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()", "failure", r"Mute"),
    "forks": (
        "if os.fork(): os.wait()",
        "passed",
        r"",
    ),
    "skip": ("pytest.skip('not today')", "skipped", r"not today"),
    "xfail": ("pytest.xfail('known')", "skipped", r"known"),
    "leaves_child": (PYTHON, "error", r"leaked 1 process"),
    "leaves_daemon": (DAEMON, "error", r"leaked 1 process"),
    "leaves_both_and_dies": (f"{PYTHON}\n{DAEMON}\n    os.abort()", "failure", r"SIGABRT[\s\S]*killed with"),
    "warm_server_killed": (
        "stat = open(f'/proc/{os.getppid()}/stat').read()\n"
        "    os.kill(int(stat.rpartition(')')[2].split()[1]), signal.SIGKILL)",
        "passed",
        r"",
    ),
    "supervisor_killed": (
        "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)",
        "failure",
        r"supervisor were killed",
    ),
    "closes_everything": ("os.closerange(3, 4096)", "failure", r"exit code 1 in the middle of the test"),
    "stops_itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "failure", r"no end after [\d.]+ s"),
    "replaces_itself": ("os.execv('/bin/true', ['true'])", "failure", r"exit code 0 in the middle of the test"),
    "removes_its_folder": ("import shutil; shutil.rmtree(os.environ['TMPDIR'])", "passed", r""),
    "warning": ("warnings.warn('from the child')", "passed", r""),
}
SPECIAL = {
    "test_setup": """
@pytest.fixture
def broken():
    ctypes.string_at(0)
def test_fault(broken): pass
""",
    "test_teardown": """
@pytest.fixture
def broken():
    yield
    ctypes.string_at(0)
def test_fault(broken): pass
""",
    "test_memory": """
@pytest.mark.isolated(memory="200MiB")
def test_fault():
    hoard = []
    while True:
        hoard.append(b"x" * 10**7); time.sleep(0.02)
""",
    "test_memory_of_a_child": """
@pytest.mark.isolated(memory="200MiB")
def test_fault():
    hoard = "import time\\nhoard = []\\nwhile True: hoard.append(b'x' * 10**7); time.sleep(0.02)"
    subprocess.run([sys.executable, "-c", hoard])
""",
}
SPECIAL["test_stalled"] = """
def test_fault(watch_log, tmp_path):
    log = tmp_path / "server.log"
    line = 'INFO:     127.0.0.1:40000 - "POST /v1/completions HTTP/1.1" %s\\n'
    log.write_text(line % "200 OK")
    watch_log(log)
    time.sleep(3)  # it is watched by then
    with log.open("a") as file:
        file.write(line % "400 Bad Request")
    logged_at = time.time()
    while True:
        time.sleep(0.05)
        print("after", time.time() - logged_at)
"""
WAIT = "\ndef wait_for_ever():\n    time.sleep(600)\n"


HANGS = [name for name, (_, _, words) in FAULTS.items() if "no end after" in words]


def measure_limit() -> float:
    """Return the limit of tests that hang: each has long begun to by then, also in a process that it starts."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"])
    return max(2.0, round(20 * (time.monotonic() - begun), 1))


def suite(folder: Path, limit: float) -> None:
    for name, (body, _, _) in FAULTS.items():
        mark = f"@pytest.mark.isolated(timeout={limit})" if name in HANGS else ""
        body = f"{WAIT}\n{mark}\ndef test_fault():\n    {body.strip()}\n"
        (folder / f"test_{name}.py").write_text(HEAD.format(body=body))
    for name, body in SPECIAL.items():
        (folder / f"{name}.py").write_text(HEAD.format(body=body))
    (folder / "test_import_dies.py").write_text(HEAD.format(body="ctypes.string_at(0)"))
    (folder / "test_import_fails.py").write_text(HEAD.format(body="import no_such_module"))
    (folder / "pytest.ini").write_text("[pytest]\n")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Alone and under xdist, at the same time: most of it they wait for what hangs."""

    limit = measure_limit()

    def begin(*options):
        folder = tmp_path_factory.mktemp("suite")
        suite(folder, limit)
        run = Run(folder, *options)
        run.limit = limit
        return run

    alone, xdist = end(begin(), begin("-n2"))
    return {"alone": alone, "xdist": xdist}


@pytest.fixture(scope="module", params=["alone", "xdist"])
def matrix(request, runs):
    return runs[request.param]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_reported_for_the_right_test(matrix, name):
    tag, text = matrix.of(f"test_{name}")
    _, expected, words = FAULTS[name]
    assert tag == expected, text
    assert re.search(words, text), text


@pytest.mark.parametrize(
    ("name", "tag", "words"),
    [
        ("setup", "error", "SIGSEGV"),
        ("teardown", "error", "SIGSEGV"),
        ("memory", "failure", "its limit is 0.195 GiB"),
        ("memory_of_a_child", "failure", "its limit is 0.195 GiB"),
    ],
)
def test_fault_is_reported_in_its_phase(matrix, name, tag, words):
    assert matrix.of(f"test_{name}")[0] == tag
    assert words in matrix.of(f"test_{name}")[1]


@pytest.mark.parametrize(("name", "words"), [("dies", "SIGSEGV"), ("fails", "no_such_module")])
def test_fault_at_import_is_reported_for_the_file(matrix, name, words):
    told = [text for key, tags in matrix.cases.items() if f"test_import_{name}" in key for _, text in tags]
    assert told, sorted(matrix.cases)
    assert words in told[0]


def test_stalled_engine_ends_the_test_soon_after_four_seconds(matrix):
    """As soon as a machine can on which the test itself comes to its turn so seldom."""
    tag, text = matrix.of("test_stalled")
    assert tag == "failure"
    assert "400 Bad Request" in text
    turns = [float(seconds) for seconds in re.findall(r"after ([\d.]+)", text)]
    assert 4 <= turns[-1] < 4 + max(1.0, 20 * max(later - earlier for earlier, later in pairwise(turns)))


def test_tests_beside_a_fault_pass(matrix):
    files = [*FAULTS, "setup", "teardown", "memory", "memory_of_a_child"]
    ended = {
        (name, test): matrix.of(f"test_{name}", test)[0] for name in files for test in ("test_before", "test_after")
    }
    assert set(ended.values()) == {"passed"}, ended


def test_check_notices_a_surviving_process():
    mark = uuid.uuid4().hex
    survivor = subprocess.Popen(["sleep", "60"], env={MARK: mark}, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE  # its variables can be read a moment after it was started
        while not marked(mark) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(marked(mark)) == 1
    finally:
        survivor.kill()
        survivor.wait()
    assert not marked(mark)


def test_check_notices_left_shared_memory():
    """Shared memory counts as soon as no process has it mapped."""
    memory = shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert memory.name in mapped()
        memory.close()
        assert memory.name in set(os.listdir("/dev/shm")) - mapped()
    finally:
        memory.unlink()


def test_faults_leave_no_process_and_no_files(matrix):
    assert not matrix.survivors
    assert not matrix.leftovers


def test_run_with_faults_fails(matrix):
    assert matrix.returncode == pytest.ExitCode.TESTS_FAILED, matrix.output[-3000:]


@pytest.mark.parametrize("name", HANGS)
def test_hanging_test_ends_soon_after_its_limit(matrix, name):
    others = [matrix.took[f"test_{other}::test_fault"] for other in FAULTS if other not in HANGS]
    assert 0 <= matrix.took[f"test_{name}::test_fault"] - matrix.limit < max(8.0, 5 * max(others))


def test_warning_of_a_child_is_shown(matrix):
    assert re.search(r"UserWarning: from the child", matrix.output)
