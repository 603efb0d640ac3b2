"""Real runs, in this environment as the one under trial: what the trial plugin writes down, and how runs end."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE

from pytest_rlregress.commands.bisect import follow
from pytest_rlregress.failures.catalogue import Catalogue
from pytest_rlregress.failures.observations import is_same_failure
from pytest_rlregress.stack import locks
from pytest_rlregress.stack.locks import Lock
from pytest_rlregress.trials import context, pytest_run
from pytest_rlregress.trials.pytest_run import TrialRequest

pytestmark = pytest.mark.slow

PYTHON = Path(sys.executable)
FILES = {
    "pytest.ini": """
        [pytest]
        addopts = --ff -n 2 -x --junitxml=report.xml --rl-record-dir=records --basetemp=kept
        rlregress_record_dir = records
        log_file = run.log
    """,
    "psutil.py": "raise RuntimeError('the current folder came before the packages of the environment')",
    "ends/test_ends.py": """
        import os, signal, subprocess, sys, time
        import pytest

        def test_passes():
            assert os.environ["VIRTUAL_ENV"] == sys.prefix
            assert os.environ["PATH"].split(os.pathsep)[0] == os.path.join(sys.prefix, "bin")

        def test_fails():
            print("x" * 30_000)
            assert [] == [1], "nothing came"

        def test_says_what_is_documented():
            raise ValueError("No API key configured.")

        def test_crashes():
            os.kill(os.getpid(), signal.SIGSEGV)

        def test_after_it():
            pass

        @pytest.mark.isolated(timeout=1)
        def test_hangs():
            time.sleep(60)

        @pytest.mark.skip(reason="not today")
        def test_skipped():
            pass

        @pytest.mark.xfail(reason="known", run=False)
        def test_expected_to_fail():
            raise ValueError("bad 7")

        @pytest.fixture
        def unclosed():
            yield
            raise OSError("cannot close")

        def test_teardown(unclosed):
            pass

        def test_leaves_a_process():
            subprocess.Popen(["sleep", "30"])

        @pytest.mark.parametrize("x", ["a"])
        def test_drawn(x):
            pass
    """,
    "ends/test_no_import.py": "import no_such_module_here\ndef test_it(): pass",
    "ends/test_import_dies.py": "import os, signal\nos.kill(os.getpid(), signal.SIGFPE)\ndef test_it(): pass",
    "ends/test_skips.py": "import pytest\npytest.importorskip('no_such_module_here')\ndef test_it(): pass",
    "killed/test_it.py": """
        import os, signal, psutil

        def test_before():
            pass

        def test_kills_the_run():
            run = [one for one in psutil.Process().parents() if any("rl-trial" in word for word in one.cmdline())]
            run[-1].kill()
    """,
    "conftest_fails/conftest.py": "from json import no_such_name",
    "conftest_fails/test_it.py": "def test_it(): pass",
    "conftest_dies/conftest.py": "import os; os.abort()",
    "broken/conftest.py": "def pytest_sessionstart(): raise KeyError('inner')",
    "stops/conftest.py": "def pytest_sessionstart(): raise KeyboardInterrupt('enough')",
    "empty/it.py": "def test_it(): pass",
    "kept/precious.txt": "of the user",
    "again/conftest.py": """
        class Reruns:  # what the harness asks of pytest-rerunfailures
            def get_reruns_count(self, item): return 1
            def get_reruns_delay(self, item): return 0

        def pytest_configure(config):
            if not config.pluginmanager.has_plugin("rerunfailures"):
                config.pluginmanager.register(Reruns(), "rerunfailures")
    """,
    "again/test_it.py": "def test_it(): assert 0",
}
SHIPPED = "launch/console_encoding/test_console_encoding.py"
HELD = f"{SHIPPED}::test_printing_on_a_terminal"
REPRODUCED = f"{SHIPPED}::test_printing_raises"
REQUESTS = {
    "ends": TrialRequest(
        ("ends/test_ends.py", "ends/test_no_import.py", "ends/test_import_dies.py", "ends/test_skips.py")
    ),
    "scenario": TrialRequest(failures=("console-encoding",), tests=frozenset({HELD, REPRODUCED})),
    "one of two": TrialRequest(("ends/test_ends.py::test_passes", "ends/test_no_import.py::test_it")),
    "no such test": TrialRequest(("ends/test_ends.py::test_nope",)),
    "no such file": TrialRequest(("test_nope.py",)),
    "none there": TrialRequest(("empty",), tests=frozenset({"empty/it.py::test_it"})),
    "no such failure": TrialRequest(failures=("console-encodin",)),
    "no such option": TrialRequest(("ends/test_ends.py",), options=("--nonsense",)),
    "killed": TrialRequest(("ends/test_ends.py::test_fails", "killed")),
    "conftest fails": TrialRequest(("conftest_fails/test_it.py::test_it",)),
    "conftest dies": TrialRequest(("conftest_dies",)),
    "broken": TrialRequest(("broken",)),
    "stops": TrialRequest(("stops",)),
    "again": TrialRequest(("again/test_it.py",)),
}


def write(folder, files):
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(inspect.cleandoc(body))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial").resolve()
    write(folder, FILES)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("RLREGRESS_", "PYTEST_", "PYTHONDONT"))]:
            patch.delenv(name)
        patch.setenv("RLREGRESS_RECORD_DIR", str(folder / "records"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def runs(folder):
    def run(request):
        return pytest_run.run_tests(PYTHON, request, timeout=PATIENCE, say=print)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(REQUESTS, pool.map(run, REQUESTS.values()), strict=True))


def test_records_every_kind_of_outcome(runs, folder):
    found = runs["ends"]
    ends = {"passes": "passed", "fails": "failed", "crashes": "crashed", "after_it": "passed", "hangs": "hung"}
    ends |= {"skipped": "unavailable", "expected_to_fail": "failed", "teardown": "failed", "drawn[a]": "passed"}
    ends |= {"leaves_a_process": "passed", "says_what_is_documented": "failed"}
    verdicts = {f"ends/test_ends.py::test_{name}": verdict for name, verdict in ends.items()}
    verdicts |= {
        "ends/test_no_import.py": "uncollected",
        "ends/test_import_dies.py": "uncollected",
        "ends/test_skips.py": "unavailable",
    }
    assert {test: one.verdict for test, one in found.observations.items()} == verdicts, found
    assert all(one.test == test for test, one in found.observations.items())
    assert found.trouble == ""
    assert found.hardware
    assert found.seconds > 1


def test_writes_nothing_that_the_users_configuration_asks_for(runs, folder):
    left = {path.name for path in folder.iterdir()} & {"records", "report.xml", "run.log", ".pytest_cache"}
    assert not left, "a trial isn't a night's run"
    assert (folder / "kept/precious.txt").read_text() == "of the user"


def test_records_a_test_that_is_run_again(runs):
    assert runs["again"].trouble == ""
    assert runs["again"].observations["again/test_it.py::test_it"].verdict == "failed"


def test_keeps_exceptions_messages_and_frames(runs):
    found = {test.rpartition("::test_")[2]: one for test, one in runs["ends"].observations.items()}
    failed = found["fails"].outcome
    assert failed.exceptions[0] == "builtins.AssertionError"
    assert failed.message.startswith("nothing came\nassert [] == [1]")
    assert failed.frames[-1].endswith("/test_ends.py:test_fails")
    assert len(failed.log) == 20_000
    assert "nothing came" in found["fails"].text
    assert found["says_what_is_documented"].named[0] == "wandb-key-missing"
    assert (found["crashes"].outcome.kind, found["crashes"].outcome.signal) == ("crashed", "SIGSEGV")
    hung = found["hangs"].outcome
    assert (hung.kind, hung.message) == ("hung", "no end after 1 s")
    assert any(frame.endswith("/test_ends.py:test_hangs") for frame in hung.frames)
    assert found["skipped"].outcome.message == "not today"
    assert (found["teardown"].outcome.phase, found["teardown"].outcome.message) == ("teardown", "cannot close")
    no_import, dies = found["ends/test_no_import.py"].outcome, found["ends/test_import_dies.py"].outcome
    assert (no_import.kind, no_import.phase) == ("failed", "collect")
    assert no_import.exceptions[:2] == ("builtins.ModuleNotFoundError", "builtins.ImportError")
    assert no_import.message == "No module named 'no_such_module_here'"
    assert (dies.kind, dies.phase, dies.signal) == ("crashed", "collect", "SIGFPE")
    assert "could not import 'no_such_module_here'" in found["ends/test_skips.py"].outcome.message


def test_failure_is_recognised_in_another_run(runs):
    test, before = "ends/test_ends.py::test_fails", runs["ends"].observations
    assert is_same_failure(runs["killed"].observations[test], before[test])
    assert not any(is_same_failure(before[test], other) for key, other in before.items() if key != test)


def test_runs_the_tests_of_a_shipped_scenario(runs):
    found = runs["scenario"]
    assert found.trouble == ""
    assert found.observations.keys() == {HELD, REPRODUCED}
    held, reproduced = found.observations[HELD], found.observations[REPRODUCED]
    assert (held.verdict, held.side, held.failure) == ("held", "guards", "console-encoding")
    assert (reproduced.verdict, reproduced.side) == ("reproduced", "reproduces")
    assert reproduced.outcome.exceptions[0] == "builtins.UnicodeEncodeError"
    assert "UnicodeEncodeError" in reproduced.text


@pytest.mark.parametrize(
    ("request_", "trouble"),
    {
        "no such test": "no such test here: ends/test_ends.py::test_nope",
        "no such file": "no such test here: test_nope.py",
        "none there": "no such test here: empty, empty/it.py::test_it",
        "no such option": "pytest ran no test: unrecognized arguments: --nonsense",
        "no such failure": "'console-encodin' is not in the catalogue. Did you mean console-encoding?",
        "killed": "pytest died of SIGKILL (Killed)",
        "conftest dies": "pytest died of SIGABRT (Aborted)",
        "broken": "pytest ran no test: KeyError: 'inner'",
        "stops": "pytest ran no test: KeyboardInterrupt: enough",
    }.items(),
)
def test_names_the_reason_for_a_run_without_results(runs, request_, trouble):
    assert trouble in runs[request_].trouble


def test_keeps_the_results_of_a_killed_run(runs):
    seen = {test: one.verdict for test, one in runs["killed"].observations.items()}
    assert seen == {"ends/test_ends.py::test_fails": "failed", "killed/test_it.py::test_before": "passed"}


def test_unimportable_file_stands_for_its_tests(runs):
    found, missing = runs["one of two"], "No module named 'no_such_module_here'"
    assert found.find("ends/test_no_import.py::test_it").outcome.message == missing
    state, reason = follow.compare_with_bad_end(found.find("ends/test_ends.py::test_passes"), found, None)
    assert (state.value, reason) == (
        "unknown",
        f"was not run: import of ends/test_no_import.py: ModuleNotFoundError: {missing}",
    )
    conftest = runs["conftest fails"].find("conftest_fails/test_it.py::test_it")
    assert (conftest.test, conftest.verdict) == ("conftest_fails/conftest.py", "uncollected")
    assert conftest.outcome.exceptions[0] == "builtins.ImportError"
    assert conftest.outcome.message.startswith("cannot import name 'no_such_name' from 'json'")


def test_keeps_bytecode_in_the_environment(monkeypatch):
    binaries = Path("/an/environment/bin")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    assert "PYTHONPYCACHEPREFIX" not in pytest_run.make_variables(binaries)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    given = pytest_run.make_variables(binaries)
    assert "PYTHONDONTWRITEBYTECODE" not in given
    assert given["PYTHONPYCACHEPREFIX"] == "/an/environment/bytecode"


def test_run_ends_at_once_if_its_parent_has_exited():
    code = "from pytest_rlregress.util.processes import end_with_parent as end; end(15, parent=1); print('lives on')"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("changed", ["tests/conftest.py", "conftest.py", "tests/helper.py", "tests/lib/x.py", "p/m.py"])
def test_changed_code_beside_the_tests_is_tried_again(tmp_path, monkeypatch, changed):
    def write(file, text):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)

    def key():
        return context.hash_code(TrialRequest(("tests/test_it.py::test_a",)), Catalogue())

    lines = {"mine": f"-e {tmp_path / 'p'}", "other": "other==1.0"}
    monkeypatch.setattr(locks, "installed", lambda: Lock(lines))
    monkeypatch.chdir(tmp_path)
    for file in ("tests/test_it.py", "other/not_ours.py", "p/.venv/lib/x.py", changed):
        write(file, "")
    (tmp_path / "tests/.#test_it.py").symlink_to("nowhere")  # an editor's
    before = key()
    for file in ("other/not_ours.py", "p/.venv/lib/x.py"):
        write(file, "changed = 1")
    assert key() == before
    write(changed, "changed = 1")
    assert key() != before


def test_a_package_on_the_import_path_is_refused(tmp_path, monkeypatch):
    for name in ("packaging", "__pycache__", "tests"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(context.RequestError, match=r"packaging would be imported from .*PYTHONPATH"):
        context.refuse_shadowed(["packaging"])
    context.refuse_shadowed(["pytest"])


def test_stops_a_run_at_its_time_limit(folder):
    said = []
    found = pytest_run.run_tests(PYTHON, TrialRequest(("ends/test_ends.py",)), timeout=0.3, say=said.append)
    assert found.trouble == "the run had no end after 0.3 s"
    assert said == ["stopping the run: its tests have 20 s to be torn down"]


WATCHED = """
import sys
from pathlib import Path
from pytest_rlregress.trials import pytest_run

try:
    pytest_run.run_tests(Path(sys.executable), pytest_run.TrialRequest(("waits",)), timeout=100, say=print)
except KeyboardInterrupt:
    print("interrupted")
"""
WAITS = """
import os, subprocess, time

def test_it():
    daemon = subprocess.Popen(["sleep", "100"], start_new_session=True)
    with open(os.environ["PIDS"] + ".part", "x") as file:
        print(os.getpid(), daemon.pid, file=file)
    os.rename(file.name, os.environ["PIDS"])
    time.sleep(100)
"""


def test_stopped_run_leaves_nothing(folder):
    write(folder, {"waits/run.py": WATCHED, "waits/test_it.py": WAITS})
    started = {}
    for sent in (signal.SIGINT, signal.SIGKILL):
        environ = {**os.environ, "PIDS": str(folder / f"{sent.name}.pids")}
        started[sent] = subprocess.Popen([PYTHON, "waits/run.py"], env=environ, stdout=subprocess.PIPE, text=True)
    printed = {}
    for sent, process in started.items():
        pids = folder / f"{sent.name}.pids"
        wait_for(pids.exists)
        running = [psutil.Process(pid) for pid in map(int, pids.read_text().split())]
        running += process_tree(process.pid)
        process.send_signal(sent)
        printed[sent] = process.communicate(timeout=PATIENCE)[0].splitlines()[-1:]
        if sent is signal.SIGINT:
            assert not any(map(alive, running)), "KeyboardInterrupt came before the run was gone"
        wait_for(lambda running=running: not any(map(alive, running)))
    assert printed == {signal.SIGINT: ["interrupted"], signal.SIGKILL: []}


STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "100"], start_new_session=True).pid, flush=True)
time.sleep(100)
"""


def test_kills_an_unresponsive_run_with_its_children(monkeypatch):
    monkeypatch.setattr(pytest_run, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(pytest_run, "_GONE_SECONDS", 0.2)
    with subprocess.Popen([PYTHON, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        daemon = psutil.Process(int(process.stdout.readline()))
        pytest_run._stop(process)
        assert process.returncode == -signal.SIGKILL
    wait_for(lambda: not alive(daemon))


def process_tree(pid):
    return psutil.Process(pid).children(recursive=True)


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(true):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_reads_the_needs_that_tests_declare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    bodies = {
        "said": "pytestmark = pytest.mark.needs('torch')\n@pytest.mark.needs('ray')\ndef test_one(): pass",
        "unsaid": "@pytest.mark.needs('torch')\ndef test_one(): pass\ndef test_two(): pass",
        "not_here": "import nowhere\n@pytest.mark.needs('torch')\ndef test_one(): pass",
    }
    for name, body in bodies.items():
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n{body}\n")

    def find_needed(*arguments, **about):
        request = TrialRequest(arguments, options=("--collect-only",), **about)
        return pytest_run.run_tests(PYTHON, request, timeout=PATIENCE, say=print).needed

    found = {name: find_needed(f"test_{name}.py") for name in bodies}
    assert found == {"said": ("ray", "torch"), "unsaid": None, "not_here": None}
    assert not Path(sys.prefix, "bytecode").exists()  # this environment is left as it is
    assert find_needed(failures=("dropout-in-ratio",)) == (
        "numpy",  # of tiny_qwen, which they ask for
        "peft",
        "tokenizers",
        "torch",
        "transformers",
    )
