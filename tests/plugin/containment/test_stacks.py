"""Stacks of real processes that hang in one way or another."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from pytest_rlregress.containment import stacks as module
from pytest_rlregress.containment.stacks import stacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere py-spy needs root")
# Where only an ancestor may trace, py-spy may trace nothing that does not ask for it.
PRELUDE = "import os, subprocess, sys, threading, time\nfrom pytest_rlregress.util import processes\n"
PRELUDE += "processes.allow_tracing()\ndef ready(): print('ready', flush=True)\n"


def settle(process):
    """Wait until a process that is about to hang does nothing any more."""
    for _ in range(600):
        before = process.cpu_times()
        time.sleep(0.1)
        if process.cpu_times() == before and process.status() == psutil.STATUS_SLEEPING:
            break


@pytest.fixture
def start():
    """Start Python code in a process of its own, which goes on once it has called ``ready()``."""
    started = []

    def start(code):
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        settle(psutil.Process(process.pid))
        return process.pid

    yield start
    for process in started:
        for each in psutil.Process(process.pid).children(recursive=True):
            each.kill()
        process.kill()
        process.communicate()


def test_shows_the_stack_of_a_sleeping_process(start):
    pid = start("def wait_for_ever(): ready(); time.sleep(99)\nwait_for_ever()")
    text = stacks(pid)
    assert re.search(rf"^=== process {pid} \(the test\) python\S*: sleeping .*started \d+ s ago: .*-c", text)
    assert "thread MainThread (idle" in text
    assert "wait_for_ever (<string>" in text


def test_shows_native_frames_below_the_gil(start):
    pid = start("import ctypes\ndef in_c(): ready(); ctypes.PyDLL(None).sleep(99)\nin_c()")
    text = stacks(pid)
    assert "holds the GIL" in text
    assert re.search(r"nanosleep \(lib.*in_c \(<string>", text, re.DOTALL)


def test_deadlock_shows_both_threads(start):
    pid = start(
        """
        a, b, met = threading.Lock(), threading.Lock(), threading.Barrier(3)
        def trainer():
            with a: met.wait(); b.acquire()
        def engine():
            with b: met.wait(); a.acquire()
        for function in (trainer, engine): threading.Thread(target=function, name=f"the-{function.__name__}").start()
        met.wait(); ready()
        """
    )
    text = stacks(pid)
    for name in ("trainer", "engine"):
        assert re.search(rf"thread the-{name} \(idle\):\n(?: {{8}}.*\n)*? {{8}}{name} \(<string>", text)


def test_shows_descendants_in_their_own_session(start):
    pid = start(
        f"""
        code = {PRELUDE!r} + "def inner(): ready(); time.sleep(99)\\ninner()"
        middle = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
        process = subprocess.Popen([sys.executable, "-c", middle, code])
        process.wait()
        """
    )
    [child, grandchild] = psutil.Process(pid).children(recursive=True)
    text = stacks(pid)
    assert (
        text.index(f"process {pid} ") < text.index(f"process {child.pid} ") < text.index(f"process {grandchild.pid} ")
    )
    assert "inner (<string>" in text


def test_like_processes_are_shown_once(start):
    code = PRELUDE + "def idle(): ready(); time.sleep(99)\nidle()"
    pid = start(
        f"""
        command = [sys.executable, "-c", {code!r}]
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
        for worker in workers: worker.stdout.readline()
        ready(); workers[0].wait()
        """
    )
    text = stacks(pid)
    pids = ", ".join(str(child.pid) for child in psutil.Process(pid).children())
    assert f"=== 3 processes with the same stacks: {pids} python" in text
    assert text.count("idle (<string>") == 1


def test_names_a_process_without_python(start):
    text = stacks(start("ready(); os.execvp('sleep', ['sleep', '99'])"))
    assert re.search(r"\(the test\) sleep: sleeping in .* ago: sleep 99\n    no stack: not a Python process$", text)


def test_names_a_zombie(start):
    pid = start(
        """
        ended = subprocess.Popen(["true"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        ready(); time.sleep(99)
        """
    )
    assert "true: zombie: it has ended and its parent has not collected it" in stacks(pid)


def test_names_a_process_that_ended():
    process = subprocess.Popen(["true"])
    process.wait()
    assert stacks(process.pid) == f"process {process.pid} is gone"


def test_shows_stacks_while_children_come_and_go(start):
    pid = start("ready()\nwhile True: subprocess.run(['sleep', '0.02'])")
    for _ in range(3):
        assert "<module> (<string>" in stacks(pid)


def test_stops_in_time_and_names_the_remaining_processes(start):
    worker = "[sys.executable, '-c', 'import time; time.sleep(99)']"
    pid = start(f"workers = [subprocess.Popen({worker}) for _ in range(20)]; ready(); workers[0].wait()")
    single = start("ready(); time.sleep(99)")
    begun = time.monotonic()
    stacks(single)
    one = time.monotonic() - begun
    begun = time.monotonic()
    text = stacks(pid, seconds=0.2)
    assert time.monotonic() - begun < max(4.0, 5 * one), "longer than it takes to look at five, of 21"
    assert re.search(r"Not looked at, the 0.2 s for stacks were over: .*python\S* \d+$", text)


def test_shows_python_frames_without_time_for_symbols(start, monkeypatch):
    pid = start("def wait_for_ever(): ready(); time.sleep(99)\nwait_for_ever()")
    monkeypatch.setattr(module, "_SHARE", 0)
    text = stacks(pid)
    assert "native frames are missing: py-spy took longer than" in text
    assert "wait_for_ever (<string>" in text


def test_says_if_permission_is_missing(start):
    pid = start("import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); ready(); time.sleep(99)")  # not dumpable
    done = subprocess.run(
        [sys.executable, "-c", f"from pytest_rlregress.containment.stacks import stacks; print(stacks({pid}))"],
        preexec_fn=lambda: ctypes.CDLL(None).prctl(24, 19, 0, 0, 0),  # for root: no CAP_SYS_PTRACE after exec
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"process {pid} " in done.stdout
    assert "py-spy may not trace this process: give the container SYS_PTRACE" in done.stdout


def test_the_main_thread_comes_first_and_not_all_lines_are_shown(start):
    pid = start(
        """
        for n in range(200): threading.Thread(target=time.sleep, args=[99], name=f"pool-{n}").start()
        ready(); time.sleep(99)
        """
    )
    text = stacks(pid)
    assert re.findall(r"^ {4}thread (\S+) \(idle\):$", text, re.MULTILINE)[0] == "MainThread"
    assert re.search(r"^ {4}… \d+ lines left out …$", text, re.MULTILINE)
    assert len(text.splitlines()) < 310


def test_without_py_spy_says_how_to_install_it(start, monkeypatch, tmp_path):
    pid = start("ready(); time.sleep(99)")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    assert "py-spy is not installed (pip install py-spy)" in stacks(pid)
