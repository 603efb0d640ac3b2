"""What a run that is killed leaves, and what is read out of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest
from patience import PATIENCE
from record_checks import checked, document, words

from pytest_rlregress.harness import record_writer as record_writer
from pytest_rlregress.records.reader import RecordError, lock, read
from pytest_rlregress.records.record_types import JournalLine, Record


def whole(path):
    """What a record or a journal holds, once sure that it is as it should be."""
    return checked(msgspec.to_builtins(read(path)))


ONE_HANGS = {
    "test_first": "def test_passes(): pass\ndef test_fails(): assert 0, 'for a reason'",
    "test_second": """
import pathlib, time

def test_hangs():
    while len(list(pathlib.Path("records").glob("*"))) != 1 or "for a reason" not in JOURNAL.read_text():
        time.sleep(0.05)
    pathlib.Path("here").touch()
    time.sleep(100)

def test_after(): pass
""".replace("JOURNAL", "next(pathlib.Path('records').glob('*'))"),
}


@pytest.fixture
def light(monkeypatch):
    """Only the plugins that are named."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return "-p", "pytest_rlregress.plugin", "-p", "xdist", "-p", "no:cacheprovider", "--rl-record-dir=records"


@pytest.fixture
def begun(pytester, light):
    """``begun(*args)`` runs ONE_HANGS up to the test that hangs, gives the process; none is left at the end."""
    started = []

    def begun(*args):
        pytester.makepyfile(**ONE_HANGS)
        started.append(psutil.Popen([sys.executable, "-m", "pytest", *light, *args], stdout=subprocess.DEVNULL))
        patience = time.monotonic() + PATIENCE
        while not (pytester.path / "here").exists():
            assert started[0].poll() is None
            assert time.monotonic() < patience
            time.sleep(0.05)
        started.extend(started[0].children(recursive=True))
        return started[0]

    yield begun
    for process in started:
        if process.is_running():
            process.kill()


@pytest.mark.parametrize("args", [(), ("-n2", "--dist=loadfile")], ids=["alone", "xdist"])
def test_journal_of_a_killed_run_has_its_results(pytester, begun, args):
    process = begun(*args)
    [path] = pytester.path.glob("records/*")
    assert path.name.endswith(f"{read(path).report_id[:6]}.partial.jsonl")
    assert whole(path)["results"]["extra"]["state"] == "running"

    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    results = whole(path)["results"]
    assert results["extra"]["state"] == "killed"
    assert "pytest" in lock(path).lines
    assert words(results) == {
        "test_passes": "passed passed",
        "test_fails": "failed failed",
        "test_hangs": "other interrupted",
        "test_after": "pending pending",
    }
    failed = next(test for test in results["tests"] if test["status"] == "failed")
    assert failed["message"].startswith("AssertionError: for a reason")
    assert "assert 0" in failed["trace"]
    assert results["summary"]["stop"] <= time.time() * 1000
    assert list(pytester.path.glob("records/*")) == [path]


@pytest.fixture
def left(tmp_path):
    """``left(*lines)``: the journal of a run of which these became known; text is written as it is."""

    def left(*lines, head=None):
        path = tmp_path / "20270314T021500Z-cpu-3f9a1c.partial.jsonl"
        head = document() if head is None else head
        text = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in (head, *lines)]
        path.write_text("".join(text))
        return path

    return left


def known(name, word, at=9, **more):
    status = {"interrupted": "other", "error": "failed"}.get(word, word)
    test = {"name": name, "status": status, "rawStatus": word, "duration": 1, "filePath": "x.py"}
    return {"at": at, "nodeid": name, "test": test, **more}


def test_last_result_of_a_test_counts(left):
    path = left(
        known("a", "pending", at=3),
        known("b", "pending", at=3),
        known("a", "interrupted", at=4),
        known("a", "failed", at=8),
        known("b", "interrupted", at=9),
    )
    results = whole(path)["results"]
    assert words(results) == {"a": "failed failed", "b": "other interrupted"}
    assert results["summary"] == {
        "tests": 2,
        **{"passed": 0, "failed": 1, "skipped": 0, "pending": 0, "other": 1},
        **{"start": 1, "stop": 9},
    }


@pytest.mark.parametrize("torn", ['{"at": 9, "nod', "\0\0\0\0", json.dumps(known("a", "failed"))])
def test_ignores_a_cut_off_line(left, torn):
    assert words(whole(left(known("a", "passed"), torn))["results"]) == {"a": "passed passed"}
    assert whole(left(torn))["results"]["tests"] == []


@pytest.mark.parametrize(
    ("head", "lines", "words"),
    [
        ("", (), "empty"),
        ('{"reportFormat": "CT', (), "empty"),
        ("[]\n", (known("a", "passed"),), "no record of a run"),
        (document(form=3), ("of another form\n",), "no complete JSON"),
        (document(form=99), ({"of": "another form"},), "format 99, known here up to"),
        (None, ('{"at": \n', known("a", "passed")), "no complete JSON"),
        (None, (known("a", "passed"), "[]\n"), "damaged"),
        (None, ({"at": 1},), "damaged.*missing required field"),
        (document(stack=()), (), "what was installed"),
    ],
)
def test_rejects_a_file_that_is_not_a_journal(left, head, lines, words):
    with pytest.raises(RecordError, match=rf"3f9a1c\.partial\.jsonl: .*{words}"):
        read(left(*lines, head=head))


def test_run_counts_as_running_while_its_process_lives(tmp_path):
    path = tmp_path / "a.partial.jsonl"
    script = f"""
import msgspec, os, pathlib, sys, time
from pytest_rlregress.harness.record_writer import Journal
from pytest_rlregress.records.record_types import Record
kept = Journal(pathlib.Path({str(path)!r}), msgspec.json.decode(sys.argv[1], type=Record))
assert not kept.problem
if os.fork() == 0:  # as a test may, whose process then outlives the run
    print("begun", flush=True)  # said by the fork: it has let go of the file by then
    time.sleep(100)
sys.stdin.read()
os._exit(0)
"""
    writer = psutil.Popen(
        [sys.executable, "-c", script, json.dumps(document())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert writer.stdout.readline() == b"begun\n"
        [orphan] = writer.children()
        assert read(path).results.extra.state == "running"
        writer.stdin.close()
        assert writer.wait(PATIENCE) == 0
        assert orphan.is_running()
        assert read(path).results.extra.state == "killed"
    finally:
        for process in (writer, orphan):
            if process.is_running():
                process.kill()


FILLS = """
import pathlib, resource, pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    used = sum(path.stat().st_size for path in pathlib.Path("records").glob("*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (used + 100_000, used + 100_000))
"""


@pytest.mark.parametrize("size", [30_000, 200_000], ids=["journal", "record-too"])
def test_full_disk_does_not_stop_the_run(pytester, light, size):
    """A limit on files stands for the disk: the journal has the failure twice, after its call and at its end."""
    pytester.makeconftest(FILLS)
    pytester.makepyfile(f"""
        def test_passes(): pass
        def test_fails(): raise ValueError("x" * {size})
        def test_after(): pass
    """)
    command = [sys.executable, "-m", "pytest", "-s", *light]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout
    [path] = pytester.path.glob("records/*")
    results = whole(path)["results"]
    state = results["extra"]["state"]
    said = re.search(r"^the journal of the run could not be kept: .*/records/.*: File too large$", done.stdout, re.M)
    assert said
    said = re.search(rf"^FAILED: the record could not be written: .*large; {path.name} holds", done.stdout, re.M)
    if size == 30_000:
        assert (path.suffix, state, said) == (".json", "complete", None)
        assert results["summary"]["passed"] == 2
    else:
        assert (state, bool(said)) == ("killed", True)
        assert words(results) == {
            "test_passes": "passed passed",
            "test_fails": "other interrupted",
            "test_after": "pending pending",
        }


def test_run_continues_without_room_for_a_journal(tmp_path):
    kept = record_writer.Journal(tmp_path / "none" / "a.partial.jsonl", msgspec.convert(document(), Record))
    kept.write([msgspec.convert(known("a", "passed"), JournalLine)])
    kept.close(keep=False)
    assert kept.problem == f"{kept.path}: No such file or directory"


def test_run_refused_by_another_plugin_leaves_no_file(pytester, run, light):
    pytester.makeconftest("import pytest\ndef pytest_sessionstart(): raise pytest.UsageError('not today')")
    result = run("def test_it(): pass", *light)
    assert result.ret == 4
    assert os.listdir(pytester.path / "records") == []
