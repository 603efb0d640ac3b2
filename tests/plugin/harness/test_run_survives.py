"""No test of the user's is lost: a run goes on, or ends in order, whatever its tests, plugins and surroundings do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE


def one_record(pytester):
    (path,) = pytester.path.glob("rec/*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize("inline", [False, True])
def test_message_with_half_a_character_costs_no_other_test(run, inline):
    result = run(
        "import pytest\npytestmark = pytest.mark.isolated(group='g')\n"
        "def test_decoded(): assert 'text \\ud83d' == 'text'\n"
        "def test_after(): pass\n",
        *(["--rl-inline"] if inline else []),
    )
    result.assert_outcomes(failed=1, passed=1)


def test_output_under_s_is_shown_whole_on_a_terminal_without_unicode(run, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    result = run(
        "import pytest\n@pytest.mark.isolated\n"
        "def test_a():\n    for i in range(30000): print(f'line {i} caf\\u00e9')\n",
        "-s",
    )
    assert sum("line " in line and "caf" in line for line in result.outlines) == 30000
    assert "line 29999 caf\\xe9" in result.outlines
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "chooses",
    [
        "def pytest_collection_modifyitems(items): items[:] = items[1::2]",
        "import pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n    yield\n    del items[::2]",
        "import os\ndef pytest_collection_modifyitems(items):\n"
        "    items[:] = [] if os.environ.get('TMPDIR', '').rpartition('/')[2].startswith('c') else items[1::2]",
    ],
)
def test_children_choose_no_tests(run, pytester, chooses):
    pytester.makeconftest(chooses)
    body = (
        "import pytest\npytestmark = pytest.mark.isolated\ndef test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n"
    )
    run({"test_1": body, "test_2": body}).assert_outcomes(passed=3)


def test_worker_of_xdist_that_dies_costs_one_test(run):
    tests = "".join(f"def test_{name}(): pass\n" for name in "abc")
    body = f"import os\n{tests}def test_dies(): os._exit(1)\ndef test_d(): pass\n"
    result = run({"test_x": body, "test_y": tests}, "-n2", "--rl-record-dir=rec")
    result.assert_outcomes(failed=1, passed=7)


STOPS = """
import os, signal
def pytest_collect_file(file_path, parent):
    if file_path.name == "test_1.py" and not hasattr(parent.config, "workerinput"):
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_sigterm_while_collecting_ends_the_run(run, pytester):
    pytester.makeconftest(STOPS)
    body = "import pytest\n@pytest.mark.isolated\ndef test_b(): open('ran', 'w').close()\n"
    result = run({"test_1": "def test_a(): pass", "test_2": body}, "--hw=cpu", "--rl-record-dir=rec", ".")
    assert result.ret == 128 + signal.SIGTERM
    assert not (pytester.path / "ran").exists()
    assert one_record(pytester)["results"]["extra"]["state"] == "interrupted"


def test_sigterm_in_a_plain_test_that_takes_every_exception(run, pytester):
    body = (
        "import os, signal, pytest\n@pytest.mark.isolated\ndef test_a(): pass\n"
        "def test_b():\n    try: os.kill(os.getpid(), signal.SIGTERM)\n    except Exception: pass\n"
        "def test_c(): open('ran', 'w').close()\n"
    )
    result = run(body, "--rl-record-dir=rec")
    assert result.ret == 128 + signal.SIGTERM
    assert not (pytester.path / "ran").exists()
    assert one_record(pytester)["results"]["extra"]["state"] == "interrupted"


def test_interrupted_while_workers_start_leaves_a_record_and_no_folder(pytester, temporary):
    pytester.makepyfile(test_a="import pytest\n@pytest.mark.isolated\ndef test_a(): pass\n")
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-n2", "--rl-record-dir=rec"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not [*temporary.glob("rlr-*")] and run.poll() is None:  # the last thing before the workers
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    run.wait(PATIENCE)
    # A worker that began late ends with the controller, and its server removes what it has.
    end = time.monotonic() + PATIENCE
    while [*temporary.glob("rlr-*")] and time.monotonic() < end:
        time.sleep(0.05)
    assert not [*temporary.glob("rlr-*")]
    assert not [*pytester.path.glob("rec/*.partial.jsonl")]
    assert one_record(pytester)["results"]["extra"]["state"] == "interrupted"


def test_stopped_supervisor_survives_no_run(run, pytester):
    result = run(
        "import os, signal, subprocess, time, pytest\n@pytest.mark.isolated(timeout=3)\ndef test_stops():\n"
        "    started = subprocess.Popen(['sleep', '600']).pid\n"
        "    open('pids', 'w').write(f'{started} {os.getppid()} {os.getpid()}')\n"
        "    os.kill(os.getppid(), signal.SIGSTOP)\n"
        "    time.sleep(100)\n"
    )
    result.assert_outcomes(failed=1)
    for pid in map(int, (pytester.path / "pids").read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_pipe_among_records_is_passed_over(run, pytester):
    pytester.mkdir("rec")
    os.mkfifo(pytester.path / "rec/20990101T000000Z-cpu-abcdef.json")
    os.mkfifo(pytester.path / "rec/20990101T000001Z-cpu-abcdef.partial.jsonl")
    body = "import pytest\n@pytest.mark.isolated\ndef test_a(): pass\n"
    run(body, "--hw=cpu", "--rl-record-dir=rec", "test_it.py").assert_outcomes(passed=1)


def test_summary_of_a_job_that_cannot_be_written_costs_no_other(run, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/dev/full")
    body = "import pytest\n@pytest.mark.isolated\ndef test_a(): pass\n"
    result = run(body, "--hw=cpu", "--rl-record-dir=rec", "test_it.py")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["GITHUB_STEP_SUMMARY: no summary of the job: *No space left on device*", "record: *"])


def test_metadata_of_another_package_is_no_error_of_the_run(run, pytester, monkeypatch):
    folder = pytester.mkdir("site") / "odd-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (folder / "direct_url.json").write_text('{"url": "https://me:TOKEN@x.org/r.git", "dir_info": null}')
    monkeypatch.setenv("PYTHONPATH", str(Path("site").absolute()))
    run("import pytest\n@pytest.mark.isolated\ndef test_a(): pass\n", "--rl-record-dir=rec").assert_outcomes(passed=1)
    text = json.dumps(one_record(pytester))
    assert "odd @ https://x.org/r.git" in text
    assert "TOKEN" not in text
