"""Containment: however a test ends, it is named, the others run and nothing survives."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import psutil
import pytest

NEIGHBOUR = """
import pytest

@pytest.mark.isolated
def test_neighbour():
    pass
"""
DEATHS = {
    "SIGFPE": ("import ctypes; ctypes.CDLL(None).div(1, 0)", "died of SIGFPE (Floating point exception)"),
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "died of SIGSEGV (Segmentation fault)"),
    "SIGABRT": ("import os; os.abort()", "died of SIGABRT (Aborted)"),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "died of SIGKILL (Killed)"),
    "exit 0": ("import os; os._exit(0)", "ended with exit code 0 in the middle of the test"),
    "exit 3": ("import os; os._exit(3)", "ended with exit code 3 in the middle of the test"),
}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize(("act", "words"), DEATHS.values(), ids=DEATHS)
def test_death_is_named_and_others_run(run, act, words, workers):
    result = run(
        {"test_a": f"import pytest\n@pytest.mark.isolated\ndef test_dies(): {act}\n", "test_b": NEIGHBOUR}, *workers
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([f"*the process {words}*" if words.startswith("ended") else f"*{words}*"])


def test_crash_keeps_the_native_stack(run):
    result = run(
        """
        import ctypes, pytest

        def embedding():
            ctypes.CDLL(None).div(1, 0)

        @pytest.mark.isolated
        def test_dies():
            embedding()
        """
    )
    result.stdout.fnmatch_lines(["*Fatal Python error: Floating point exception*", "*in embedding*", "*in test_dies*"])


def test_hang_is_stopped_with_its_stacks(run):
    begun = time.monotonic()
    result = run(
        {
            "test_a": """
            import time, pytest

            def wait_for_ever():
                time.sleep(600)

            @pytest.mark.isolated(timeout=2)
            def test_hangs():
                wait_for_ever()
            """,
            "test_b": NEIGHBOUR,
        }
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*no end after 2 s*", "*in wait_for_ever*"])
    assert time.monotonic() - begun < 30


def test_time_limit_of_the_command_line(run):
    result = run("import pytest, time\n@pytest.mark.isolated\ndef test_hangs(): time.sleep(600)", "--rl-timeout=1.5")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no end after 1.5 s*"])


def is_alive(process):
    """Whether a process runs; one that only waits to be collected by its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_descendant_survives(run, pytester):
    result = run(
        """
        import os, subprocess, sys, pytest

        CODE = "import os, time; os.setsid(); os.fork() and os._exit(0); print(os.getpid(), flush=1); time.sleep(99)"

        @pytest.mark.isolated
        @pytest.mark.parametrize("end", ["pass", "crash"])
        def test_leaves_a_daemon(end):
            daemon = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE)
            with open(f"{end}.pid", "wb") as file:
                file.write(daemon.stdout.readline())
            if end == "crash":
                os.abort()
        """
    )
    result.assert_outcomes(failed=1, passed=1)
    for end in ("pass", "crash"):
        pid = int((pytester.path / f"{end}.pid").read_text())
        assert not psutil.pid_exists(pid), f"the daemon of the test that ends with {end} is alive"


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=lambda end: end.name)
def test_nothing_survives_the_end_of_pytest(pytester, end):
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
    process = subprocess.Popen([sys.executable, "-m", "pytest"], cwd=pytester.path)
    pids = pytester.path / "pids"
    deadline = time.monotonic() + 60
    while not pids.exists():
        assert time.monotonic() < deadline, "the contained test did not start"
        time.sleep(0.05)
    family = [
        *psutil.Process(process.pid).children(recursive=True),
        *map(psutil.Process, map(int, pids.read_text().split())),
    ]
    process.send_signal(end)
    process.wait(timeout=60)
    if end == signal.SIGINT:
        assert process.returncode == pytest.ExitCode.INTERRUPTED
        assert (pytester.path / "torn-down").exists(), "the fixture was not torn down"
    # After Ctrl-C pytest itself waits for the end of its family; the last of it may still be on its way out.
    deadline = time.monotonic() + (1 if end == signal.SIGINT else 10)
    while (left := [relative for relative in family if is_alive(relative)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_skip_xfail_and_errors_stay_what_they_are(run):
    result = run(
        """
        import pytest

        pytestmark = pytest.mark.isolated(group="g")

        @pytest.fixture
        def broken():
            raise RuntimeError("no fixture")

        @pytest.fixture
        def broken_at_the_end():
            yield
            raise RuntimeError("no teardown")

        def test_skips(): pytest.skip("not today")
        @pytest.mark.xfail
        def test_xfails(): assert False
        @pytest.mark.xfail
        def test_xpasses(): pass
        def test_fails(): assert 1 == 2
        def test_setup(broken): pass
        def test_teardown(broken_at_the_end): pass
        """,
        "-rA",
    )
    result.assert_outcomes(skipped=1, xfailed=1, xpassed=1, failed=1, errors=2, passed=1)
    result.stdout.fnmatch_lines(["*not today*", "*assert 1 == 2*"])


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


def test_group_shares_a_child_until_one_of_it_dies(run, pytester):
    result = run(GROUP)
    result.assert_outcomes(passed=4, failed=1)
    assert len(list(pytester.path.glob("up-*"))) == 2, "one engine before the crash and one after it"
    assert len(list(pytester.path.glob("down-*"))) == 1, "the second one is torn down"


def test_folder_is_one_workers_under_xdist(pytester, run):
    group = GROUP.replace("os.abort()", "pass").replace('isolated(group="engine")', 'needs("torch")')
    for folder in ("one", "two"):
        pytester.mkpydir(folder).joinpath("test_it.py").write_text(group)
    run({}, "--hw=cpu", "-n2", "one", "two").assert_outcomes(passed=10)
    assert len(list(pytester.path.glob("up-*"))) == len(list(pytester.path.glob("down-*"))) == 2


def test_in_process_fixtures_live_on_between_contained_tests(run):
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
        }
    )
    result.assert_outcomes(passed=4)


def test_descriptors_of_the_child_are_real(run):
    result = run(
        """
        import os, sys, pytest

        @pytest.mark.isolated
        def test_prints():
            os.write(sys.stdout.fileno(), b"from descriptor\\n")
            print("from python")
            assert False
        """,
        "--capture=sys",
    )
    result.stdout.fnmatch_lines(["*from descriptor*", "*from python*"])


def test_environment_and_fresh_interpreter(run):
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


def test_junit_file_carries_the_crash(run, pytester):
    run("import os, pytest\n@pytest.mark.isolated\ndef test_dies(): os.abort()", "--junitxml=out.xml")
    case = ET.parse(pytester.path / "out.xml").getroot().find(".//testcase")
    assert case.get("name") == "test_dies"
    assert "SIGABRT" in case.find("failure").text


def test_wrong_marker_is_a_usage_error(run):
    result = run("import pytest\n@pytest.mark.isolated(timeoutt=3)\ndef test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*isolated(): timeoutt not allowed; allowed: group, env, fresh, timeout*"])


def test_no_litter(run, pytester, monkeypatch, tmp_path_factory):
    temporary = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(temporary))
    run(NEIGHBOUR).assert_outcomes(passed=1)
    assert not list(temporary.glob("rlregress-*"))
