"""Containment: however a test ends, it is named, the others run and nothing survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from multiprocessing.connection import Connection

import needs
import psutil
import pytest
from patience import PATIENCE

from pytest_rlregress.containment import Order
from pytest_rlregress.containment.child import Child
from pytest_rlregress.containment.pool import WarmServer

NEIGHBOUR = """
import pytest

@pytest.mark.isolated
def test_neighbour():
    pass
"""


def is_alive(process):
    """Whether a process runs; one that only waits to be collected by its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


ALONE, XDIST = (), ("--hw=cpu", "-n2", ".")


@pytest.mark.parametrize(
    ("end", "workers"),
    [
        pytest.param(signal.SIGINT, ALONE, id="SIGINT-alone"),
        pytest.param(signal.SIGTERM, ALONE, id="SIGTERM-alone", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, ALONE, id="SIGKILL-alone", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, XDIST, id="SIGINT-xdist", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, XDIST, id="SIGTERM-xdist", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, XDIST, id="SIGKILL-xdist"),
    ],
)
def test_nothing_survives_the_end_of_pytest(pytester, tmp_path, temporary, end, workers):
    pytester.makepyfile(
        """
        import os, subprocess, time, pytest

        @pytest.fixture
        def engine():
            process = subprocess.Popen(["sleep", "99"], start_new_session=True)
            yield process
            open("torn-down", "w").close()

        @pytest.mark.isolated
        def test_waits(engine):
            with open("pids.new", "w") as file:
                file.write(f"{os.getpid()} {engine.pid}")
            os.rename("pids.new", "pids")
            time.sleep(600)
        """
    )
    command = [sys.executable, "-m", "pytest", "--junitxml=junit.xml", f"--basetemp={tmp_path}/base", *workers]
    process = subprocess.Popen(command, cwd=pytester.path)
    pids = pytester.path / "pids"
    deadline = time.monotonic() + PATIENCE
    while not pids.exists():
        assert time.monotonic() < deadline, "the contained test did not start"
        time.sleep(0.05)
    family = [
        *psutil.Process(process.pid).children(recursive=True),
        *map(psutil.Process, map(int, pids.read_text().split())),
    ]
    process.send_signal(end)
    process.wait(timeout=PATIENCE)
    if end != signal.SIGKILL:
        stopped = {signal.SIGINT: pytest.ExitCode.INTERRUPTED, signal.SIGTERM: 128 + signal.SIGTERM}
        assert process.returncode == stopped[end]
        assert ET.parse(pytester.path / "junit.xml").getroot().tag == "testsuites"
    if end != signal.SIGKILL and not workers:
        assert (pytester.path / "torn-down").exists(), "the fixture was not torn down"
    deadline = time.monotonic() + PATIENCE
    while (left := [*filter(is_alive, family), *temporary.iterdir()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_full_disk_where_a_report_is_written_costs_neither_summary_nor_exit_code(run):
    result = run("import pytest\n@pytest.mark.isolated\ndef test_passes(): pass", "--junitxml=/dev/full")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["FAILED: a report could not be written: *No space left on device*"])


@pytest.mark.slow
def test_full_disk_where_tests_write(run, tmp_path, temporary):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", temporary]).returncode:
        pytest.skip("this user may not mount a file system of that size")
    try:
        body = "import pytest\n@pytest.mark.isolated\ndef test_fills():\n    while True: print('x' * 10**5)\n"
        result = run({"test_a": body, "test_b": NEIGHBOUR}, f"--basetemp={tmp_path}/base")
        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines(["*OSError: * No space left on device*"])
    finally:
        subprocess.run(["umount", temporary], check=True)


def test_waiting_for_a_turn_does_not_count_against_the_limit(run):
    body = """
        import time, pytest
        from pytest_rlregress.containment.worker import wait_for_turn

        @pytest.mark.isolated(group="g", timeout=5)
        @pytest.mark.parametrize("after", [0, 600])
        def test_waits(after):
            begun = time.monotonic()
            wait_for_turn(lambda: time.monotonic() > begun + 6, "somebody")
            time.sleep(after)
    """
    result = run(body)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*no end after 5 s*"])


def test_exit_asked_for_in_a_child_ends_the_run(run):
    body = "import pytest\npytestmark = pytest.mark.isolated\ndef test_exits(): pytest.exit('enough', 7)\n"
    result = run(f"{body}def test_after(): pass\n")
    assert result.ret == 7
    result.stdout.fnmatch_lines(["*Exit: enough*"])


GROUP = """
import os, pytest

pytestmark = pytest.mark.isolated(group="engine")
PIDS = []

@pytest.fixture(scope="session")
def engine():
    open(f"up-{os.getpid()}", "w").close()
    yield os.getpid()
    open(f"down-{os.getpid()}", "w").close()

def test_first(engine): assert engine == os.getpid()
def test_second(engine): assert engine == os.getpid()
def test_dies(engine): os.abort()
def test_third(engine): assert engine == os.getpid()
def test_fourth(engine): assert engine == os.getpid()
"""


def test_group_shares_a_child_until_one_test_dies(run, pytester):
    result = run(GROUP)
    result.assert_outcomes(passed=4, failed=1)
    assert len(list(pytester.path.glob("up-*"))) == 2, "one engine before the crash and one after it"
    assert len(list(pytester.path.glob("down-*"))) == 1, "the second one is torn down"


@needs.stack
def test_each_folder_runs_in_one_xdist_worker(pytester, run):
    group = GROUP.replace("os.abort()", "pass").replace('isolated(group="engine")', 'needs("pydantic")')
    for folder in ("one", "two"):
        pytester.mkpydir(folder).joinpath("test_it.py").write_text(group)
    run({}, "--hw=cpu", "-n2", "one", "two").assert_outcomes(passed=10)
    assert len(list(pytester.path.glob("up-*"))) == len(list(pytester.path.glob("down-*"))) == 2


def test_a_fixture_of_one_file_outside_the_root_folder_is_not_another_files(pytester, tmp_path_factory):
    """Until pytest 9.0 a file outside that is an argument has the node id "", and its fixtures are every test's."""
    folder = tmp_path_factory.mktemp("outside")
    test = "import pytest\n@pytest.mark.isolated(group='both')\ndef test_hub(hub): assert hub == {!r}\n"
    (folder / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef hub(): return 'for all'\n")
    own = "@pytest.fixture\ndef hub(): return 'for one'\n"
    for name, text in (("one", test.format("for one") + own), ("two", test.format("for all"))):
        (folder / name).mkdir()
        (folder / name / f"test_{name}.py").write_text(text)
    (folder / "two" / "test_not_asked_for.py").write_text("raise SystemExit('imported')")
    root, more = f"--rootdir={pytester.path}", f"--ignore={folder}/two/test_not_asked_for.py"
    pytester.runpytest_subprocess(root, more, folder).assert_outcomes(passed=2)
    named = folder / "checks.py"  # collected as an argument only
    named.write_text("import pytest\n@pytest.mark.isolated(group='both')\ndef test_check(): pass\n")
    files = folder / "one" / "test_one.py", folder / "two" / "test_two.py", named
    pytester.runpytest_subprocess(root, *files).assert_outcomes(passed=3)


def test_in_process_fixtures_live_on_between_contained_tests_that_leave_nothing(run, tmp_path, temporary):
    result = run(
        {
            "conftest": """
            import pytest

            COUNT = []

            @pytest.fixture(scope="session")
            def count():
                COUNT.append(1)
                return len(COUNT)
            """,
            "test_a": "def test_one(count): assert count == 1",
            "test_b": NEIGHBOUR,
            "test_c": "def test_two(count): assert count == 1",
            "test_d": NEIGHBOUR,
        },
        f"--basetemp={tmp_path}/base",
    )
    result.assert_outcomes(passed=4)
    assert not list(temporary.iterdir())


@needs.stack
def test_isolated_test_gets_its_environment_in_a_fresh_interpreter(run):
    result = run(
        """
        import os, sys, pytest

        @pytest.mark.isolated(env={"OMP_NUM_THREADS": "3"})
        def test_environment():
            assert b"OMP_NUM_THREADS=3" in open("/proc/self/environ", "rb").read().split(b"\\0") or \
                b"OMP_NUM_THREADS=3" in open(f"/proc/{os.getppid()}/environ", "rb").read().split(b"\\0")
            assert os.environ["OMP_NUM_THREADS"] == "3"

        @pytest.mark.isolated(fresh=True)
        @pytest.mark.needs("torch")
        def test_fresh():
            assert "torch" not in sys.modules

        @pytest.mark.isolated
        @pytest.mark.needs("torch")
        def test_warm():
            assert "torch" in sys.modules
        """
    )
    result.assert_outcomes(passed=3)


def test_leftovers_are_reported_even_if_a_failing_teardown_removes_them(run):
    result = run(
        """
        import shutil, time, pytest

        @pytest.fixture
        def logs(tmp_path, watch_log):
            folder = tmp_path / "logs"
            folder.mkdir()
            watch_log(folder)
            yield folder
            time.sleep(1)  # as long as it takes Ray at least
            shutil.rmtree(folder)
            raise OSError("not torn down")

        @pytest.mark.isolated
        def test_it(logs):
            word = f"*** SIG{'FPE'} received at time=1795277675 on cpu 0 ***"
            (logs / "worker-26794b-01000000-4711.err").write_text(word)
            assert not word
        """
    )
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(["*worker*4711*SIGFPE*"])


def test_user_files_named_like_python_modules_do_no_harm(pytester):
    theirs = "raise SystemExit('not the one you want')"
    pytester.makepyfile(json=theirs, test_it="import pytest\n@pytest.mark.isolated\ndef test_passes(): pass")
    # As a command and without a path: else pytest itself looks into the current folder first.
    command = [os.path.join(os.path.dirname(sys.executable), "pytest"), "-q", "-p", "no:cacheprovider"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, env=environ)
    assert "1 passed" in done.stdout


LAMBDA = """
class Choice:
    pass

def pytest_configure(config):
    config.option.chooser = lambda name: name
    config.option.choice = Choice()
"""
TAKES_OVER = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if hasattr(item.config, "workerinput") and item.name == "test_taken":
        return True
"""


def test_conftest_that_changes_options_or_tests_causes_no_internal_error(run):
    body = "import pytest\npytestmark = pytest.mark.isolated(group='g')\n"
    result = run(
        {
            "conftest": LAMBDA + TAKES_OVER,
            "test_it": body + "def test_taken(): pass\ndef test_chooser(pytestconfig):\n"
            "    assert pytestconfig.option.chooser(1) == 1\n",
        }
    )
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*no report of this test: a hook of a plugin or a conftest.py took it over*"])


def test_sigterm_after_the_session_reaches_the_caller(pytester):
    pytester.makepyfile(test_it=NEIGHBOUR)
    code = "import os, pytest, signal; pytest.main(['-q', 'test_it.py']); os.kill(os.getpid(), signal.SIGTERM)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE).returncode == -signal.SIGTERM


def test_never_signals_a_collected_process(monkeypatch, temporary):
    server = WarmServer((), os.environ, temporary / "server")
    order = Order(options={}, files=(), arguments=(), folder="/nowhere", environment={}, workerinput={}, markers=())
    child = server.fork(order, temporary / "log", echo=False)  # ends at once: there is no such folder
    child._receive_status()
    deadline = time.monotonic() + PATIENCE
    while psutil.pid_exists(child._pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.setattr(os, "kill", lambda pid, number: pytest.fail(f"signal {number} to {pid}, which is collected"))
    child.interrupt()
    child.close()
    server.close()


KILLS_THE_SERVER = """
import os, signal, time
from pytest_rlregress.containment.child import Child
from pytest_rlregress.containment.pool import WarmServer

fork, killed = WarmServer.fork, []

def fork_after_a_kill(self, *args):
    if not killed:  # after the pool has found the server alive
        killed.append(self._process.pid)
        os.kill(self._process.pid, signal.SIGKILL)
    return fork(self, *args)

WarmServer.fork = fork_after_a_kill
"""


def test_restarts_a_warm_server_killed_at_the_last_moment(run):
    run({"conftest": KILLS_THE_SERVER, "test_it": NEIGHBOUR}).assert_outcomes(passed=1)


@pytest.mark.slow
def test_how_long_imports_may_take_follows_the_limit_of_tests(run, temporary):
    limit = """
        from types import SimpleNamespace
        from pytest_rlregress.harness.settings import Settings

        of = Settings.start_timeout.fget
        assert (of(SimpleNamespace(timeout=2.0)), of(SimpleNamespace(timeout=900.0))) == (120.0, 900.0)
        Settings.start_timeout = property(lambda self: 3.0)
    """
    body = f"import os, time\nif '/rlr-' in os.environ['TMPDIR']: time.sleep(30)  # in the child\n{NEIGHBOUR}"
    result = run({"conftest": limit, "test_it": body})
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*not ready to run tests after 3 s*"])


LIMITED = """
import subprocess, sys, time, pytest

@pytest.mark.isolated
def test_memory():
    subprocess.run([sys.executable, "-c", "import time; hoard = b'x' * 3 * 10**8; time.sleep(600)"])

@pytest.mark.isolated(memory="4GiB")
def test_marker(): bytearray(3 * 10**8); time.sleep(1)

@pytest.mark.isolated
def test_stall(watch_log, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("begun\\n")
    watch_log(log)
    time.sleep(3)  # it is watched by then
    with log.open("a") as file:
        file.write('INFO:     127.0.0.1:40000 - "POST /v1/completions HTTP/1.1" 400 Bad Request\\n')
    time.sleep(600)
"""


def test_notices_the_end_of_a_supervisor_after_a_late_signal(tmp_path):
    ours, channel = socket.socketpair()
    status, supervisor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    order = Order(options={}, files=(), arguments=(), folder="/", environment={}, workerinput={}, markers=())
    (tmp_path / "log").touch()
    with channel:
        child = Child(Connection(ours.detach()), status, tmp_path / "log", order, echo=False)
        supervisor.send(json.dumps({"exit": 0, "left": {"7": "sleep"}}).encode())
        child._signal(signal.SIGINT)
        supervisor.close()  # with that signal unread
        assert child.close() == (7,)


def test_enforces_limits_on_memory_and_stalls(run, monkeypatch):
    monkeypatch.setenv("RLREGRESS_STALL", "1")
    result = run(LIMITED, "--rl-memory=200MiB")
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(["*its limit is 0.195 GiB*", "*stalled: no end 1 s after its engine logged an error*"])
