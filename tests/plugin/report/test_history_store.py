"""The history of runs: every file accounted for, whatever it is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import histories
import msgspec
import pytest
from histories import Event
from hypothesis import given, settings
from hypothesis import strategies as st
from record_checks import checked

from pytest_rlregress.fixtures.drawn import EXAMPLES
from pytest_rlregress.records import history as history_module
from pytest_rlregress.records import reader, step_numbers
from pytest_rlregress.records.history import open_history, read_entry
from pytest_rlregress.records.record_types import FORMAT

GOLDEN, HELD = histories.GOLDEN, next(case.name for case in histories.cases(9) if case.word == "held")
MOMENT = 1_795_000_000


def opened(*sources):
    return open_history(sources)


def problems(history):
    """What is said of each file, by its name."""
    return {problem.path.name: problem.text for problem in history.problems}


def edited(source, target, **changes):
    """A copy of a record in which keys of its summary, its extra or its own are others, or are gone (None)."""
    record = json.loads(source.read_text())
    for key, value in changes.items():
        places = (record["results"]["summary"], record["results"]["extra"], record)
        place = next((place for place in places if key in place), record["results"]["extra"])
        place[key] = value
        if value is None:
            del place[key]
    target.write_text(json.dumps(record))
    return target


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three nights of two platforms, as files that no test changes."""
    return histories.make(tmp_path_factory.mktemp("made"), nights=3, tests=9, traces=False)


@pytest.fixture
def folder(made, tmp_path):
    """Them in a folder of their own."""
    return Path(shutil.copytree(made[0].parent, tmp_path / "records"))


# -- what is in a history ----------------------------------------------------------------------------------------------


def test_made_up_records_match_the_schema(tmp_path):
    events = [Event("bad", 0, HELD), Event("interrupted", 1, platform="cpu"), Event("killed", 1, platform="h100")]
    paths = histories.make(tmp_path, nights=2, events=events)
    for path in paths:
        checked(msgspec.to_builtins(reader.read(path)))
    assert [run.extra.state for run in opened(tmp_path).runs] == ["complete", "complete", "interrupted", "killed"]
    assert [path.suffix for path in paths] == [".json", ".json", ".json", ".jsonl"]


def test_reads_a_real_record(run, pytester):
    run("def test_good(): pass\ndef test_bad(): assert 0, 'a reason'", "--rl-record-dir=records", "test_it.py")
    history = opened(pytester.path / "records")
    (one,) = history.runs
    assert (one.extra.state, one.platform) == ("complete", "cpu")
    assert one.call.selection[-1] == "test_it.py"
    assert one.lock.version("pytest")
    assert one.extra.stack.versions["torch"] == one.lock.version("torch")
    (point,) = history.timelines["cpu"]["test_it.py::test_bad"]
    assert (point.run, point.word, point.note) == (one, "failed", "AssertionError: a reason")
    entry = read_entry(one, "test_it.py::test_bad")
    assert entry.message == point.note.splitlines()[0]
    assert "a reason" in entry.trace
    assert (entry.retries, entry.file_path) == (0, "test_it.py")


def test_runs_are_in_order_with_what_they_ran_on(tmp_path):
    events = [
        Event("upgrade", 1, "torch", "2.14.0"),
        Event("driver", 1, "", "580.1"),
        Event("no run", 0, platform="cpu"),
    ]
    events += [Event("bad", 1, HELD, "regressed", platform="h100"), Event("dirty", 1), Event("commit", 1, "", "abc")]
    histories.make(tmp_path, nights=2, events=events, tests=9)
    history = opened(tmp_path)
    assert [(run.platform, run.night.day) for run in history.runs] == [("h100", 19), ("cpu", 20), ("h100", 20)]
    assert list(history.timelines) == ["cpu", "h100"]
    first, _, last = history.runs
    assert (first.extra.hardware.driver, last.extra.hardware.driver, last.dirty, last.commit[:4]) == (
        "570.86.10",
        "580.1",
        True,
        "abc0",
    )
    assert last.devices == ("NVIDIA H100 80GB HBM3",)
    assert (first.lock.version("torch"), last.lock.version("torch")) == ("2.13.0+cpu", "2.14.0")
    assert last.extra.stack.requirements == last.lock.text.splitlines()
    written = reader.read(last.path).results
    assert last.extra == written.extra
    assert last.seconds == pytest.approx(sum(test.duration for test in written.tests) / 1000 + 4)
    assert [point.word for point in history.timelines["h100"][HELD]] == ["held", "regressed"]
    assert [point.run for point in history.timelines["cpu"][HELD]] == [history.runs[1]]
    assert history.timelines["h100"][HELD][1].failure
    assert set(history.timelines["cpu"]) == {case.name for case in histories.cases(9)}


RUNS = [
    {
        "variant": "sequence",
        "loss": [9.0],
        "step_seconds": [9.0],
    },
    {
        "variant": "token",
        "loss": [0.5, 0.25],
        "step_seconds": [3.0, 1.0, 2.0],
        "tokens_per_second": [10, None, 30],
        "disagreement_before": [0.1, 0.3],
        "disagreement_after": [0.2, float("nan")],
        "device_memory_bytes": 0,
        "host_memory_bytes": 77,
    },
]
TRL = [{"step": "trl-step", "variant": "colocate", "loss": [1.0, 0.5], "agreement": [1e-8, 1e-7]}]
REDUCED = {"loss": 0.25, "step_seconds": 2.0, "tokens_per_second": 20.0, "agreement": 0.3, "peak_memory_bytes": 77}


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ([("test_golden", RUNS)], REDUCED),
        ([("test_learns", RUNS[:1]), ("test_golden", RUNS)], REDUCED),
        ([("test_learns", RUNS[:1]), ("test_step", RUNS)], {"loss": 9.0, "step_seconds": 9.0}),
        ([("test_step", [{**RUNS[1], "device_memory_bytes": 5}])], {**REDUCED, "peak_memory_bytes": 5}),
        ([("test_step", [{"variant": "token", "loss": [None]}])], {}),
        ([("test_step", [])], {}),
        ([("test_trl", TRL), ("test_golden", RUNS)], {**REDUCED, "trl-step loss": 0.5, "trl-step agreement": 1e-7}),
        ([], {}),
    ],
)
def test_reads_the_numbers_of_each_step(tests, expected):
    entries = [("test_good", None), *((name, {"runs": runs}) for name, runs in tests)]
    assert step_numbers.name_numbers(step_numbers.read_steps(entries)) == expected


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda record: record[: len(record) // 2], "cut off"),
        (lambda record: record.replace(b'"start": 1', b'"start": 99991'), "does not say when its run began"),
        (
            lambda record: record.replace(b'"state": "complete"', b'"state": "green"'),
            "Invalid enum value 'green' - at `$.results.extra.state`",
        ),
    ],
    ids=["cut off", "no start", "no state"],
)
def test_names_a_damaged_file_and_reads_the_others(folder, made, content, why):
    damaged = folder / "a.json"
    damaged.write_bytes(content(made[0].read_bytes()))
    history = opened(folder)
    assert len(history.runs) == 6
    assert set(problems(history)) == {"a.json"}
    assert why in problems(history)["a.json"]
    assert str(folder) not in problems(history)["a.json"]


def test_reads_a_file_after_it_becomes_readable(made):
    uid = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are open to no other user
        folder = Path(name)
        for path in made[:2]:
            shutil.copy(path, folder)
        secret = folder / made[0].name
        os.chmod(folder, 0o777)
        os.chmod(secret, 0)
        (folder / "below").mkdir(mode=0)
        listed = folder / "listed"
        listed.mkdir()
        shutil.copy(made[2], listed / "a.json")
        listed.chmod(0o444)  # shows its names, and nothing else of them
        with contextlib.ExitStack() as stack:
            if uid == 0:
                os.seteuid(65534)
                stack.callback(os.seteuid, 0)
            history = opened(folder)
            assert len(history.runs) == 1
            why = "cannot be read: Permission denied"
            assert problems(history) == {secret.name: why, "below": why, "a.json": "no file that can be read"}
        listed.chmod(0o755)
        os.chmod(secret, 0o644)
        history = opened(folder)
        assert (len(history.runs), problems(history)) == (3, {"below": why} if uid else {})


def test_counts_several_files_of_one_run_once(folder, made):
    cpu, h100 = (folder / path.name for path in made[:2])
    copy = folder / "copy.json"
    shutil.copy(cpu, copy)
    record = json.loads(made[2].read_text())
    head = {**record, "results": {**record["results"], "tests": []}}
    (folder / "x.partial.jsonl").write_text(json.dumps(head) + "\n")
    history = opened(folder)
    assert [run.path.name for run in history.runs[:3]] == [cpu.name, h100.name, made[2].name]
    assert len(history.runs) == 6
    same = {copy.name: cpu, "x.partial.jsonl": folder / made[2].name}
    assert problems(history) == {name: f"of the same run as {path}, which counts" for name, path in same.items()}


JOURNAL = """
import sys, time
from pathlib import Path
from pytest_rlregress.records import reader
from pytest_rlregress.harness.record_writer import Journal
from pytest_rlregress.records.record_types import JournalLine
record = reader.read(Path(sys.argv[1]))
tests, record.results.tests = record.results.tests, []
journal = Journal(Path(sys.argv[2]), record)
journal.write([JournalLine(record.results.summary.start + 9, test.name, test) for test in tests[:4]])
print("written", flush=True)
time.sleep(60)
"""


def test_journal_shows_a_running_run_and_then_a_killed_one(folder, made):
    kept = folder / "x.partial.jsonl"
    (folder / made[0].name).unlink()
    running = subprocess.Popen([sys.executable, "-c", JOURNAL, made[0], kept], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout.readline() == "written\n"
        history = opened(folder)
        assert (history.runs[0].extra.state, history.runs[0].path) == ("running", kept)
    finally:
        running.send_signal(signal.SIGKILL)
        running.communicate()
    history = opened(folder)
    assert history.runs[0].extra.state == "killed"
    assert read_entry(history.runs[0], GOLDEN).file_path.endswith("test_golden.py")


def test_finds_records_in_subfolders_but_not_in_hidden_ones(folder, made, tmp_path):
    below = folder / "artifacts" / "h100"
    below.mkdir(parents=True)
    moved = (folder / made[0].name).rename(below / made[0].name)
    hidden = folder / ".cache"
    hidden.mkdir()
    shutil.copy(moved, hidden / "a.json")
    for name in (".a.json.partial", ".a.json", "a.txt", "a.json.gz"):
        shutil.copy(moved, folder / name)
    (folder / "latest.json").symlink_to(moved)
    (folder / "loop").symlink_to(folder)
    (folder / "elsewhere").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    shutil.copy(made[0], tmp_path / "other" / "copy.json")
    history = opened(folder, moved, folder)
    assert (len(history.runs), problems(history)) == (6, {})  # a linked folder is not searched
    (folder / "gone.json").symlink_to(tmp_path / "nowhere")
    (folder / "self.json").symlink_to(folder / "self.json")
    os.mkfifo(folder / "pipe.json")
    told = problems(opened(folder))
    assert {told[name] for name in ("gone.json", "self.json", "pipe.json")} == {"no file that can be read"}
    assert len(opened(folder / "a.txt").runs) == 1  # one that is named is read, whatever its name


def test_rejects_a_missing_source_and_names_an_empty_one(tmp_path):
    with pytest.raises(reader.RecordError, match=r"nowhere: there is no such file or folder\. Allowed: "):
        opened(tmp_path, tmp_path / "nowhere")
    history = opened(tmp_path)
    assert (history.runs, history.timelines) == ((), {})
    assert [(problem.path, problem.text[:15]) for problem in history.problems] == [(tmp_path, "no record in it")]


def test_merges_tests_of_one_name_and_reads_unprintable_text(folder, made):
    path = folder / made[0].name
    record = json.loads(path.read_text())
    good = next(test for test in record["results"]["tests"] if test["name"] == HELD)
    bad = {**good, "status": "failed", "rawStatus": "failed", "message": "half \ud800 of it\nmore", "trace": "here"}
    bad["extra"] = {**good["extra"], "verdict": "regressed"}
    odd = {**bad, "name": "test[\ud800]", "message": "long " * 100}
    record["results"]["tests"] += [bad, good, odd]
    path.write_text(json.dumps(record))
    history = opened(folder)
    lines = history.timelines["cpu"]
    assert (lines[HELD][0].word, lines[HELD][0].note) == ("regressed", "half ? of it")
    assert read_entry(history.runs[0], HELD).trace == "here"
    (point,) = lines["test[?]"]
    assert (len(point.note), point.note[-1]) == (history_module.NOTE_CHARACTERS, "…")
    assert read_entry(history.runs[0], "test[?]").message == "long " * 100


def test_evidence_is_read_from_the_file(folder):
    run = opened(folder).runs[0]
    assert read_entry(run, GOLDEN).extra.measured["runs"]
    assert read_entry(run, "test_of_another_run").message.startswith("its record can no longer be read: ")
    history_module._read_entries.cache_clear()
    run.path.unlink()
    assert "cannot be read: No such file" in read_entry(run, GOLDEN).message


# -- for any files -----------------------------------------------------------------------------------------------------

#: Which of the made files a file is like, and what is done to it.
FILE = st.tuples(st.integers(0, 5), st.sampled_from(["", "", "cut", "foreign", "newer", "journal", "longer", "early"]))
FOLDER = st.dictionaries(st.sampled_from("abcdefgh"), FILE)


def _put(folder, wanted, made):
    """Make a folder hold these files: their paths."""
    contents = {}
    for name, (number, kind) in wanted.items():
        content = made[number].read_text()
        record = json.loads(content)
        if kind == "cut":
            content = content[:-9]
        elif kind == "foreign":
            content = '{"tests": 3}'
        elif kind == "newer":
            record["results"]["extra"]["format"] = FORMAT + 1
        elif kind == "longer":
            record["results"]["summary"]["stop"] += 7
        elif kind == "early":
            record["results"]["summary"]["stop"] = 7
        if kind in ("newer", "longer", "early"):
            content = json.dumps(record)
        if kind == "journal":
            record["results"]["tests"], content = [], json.dumps(record) + "\n"
        contents[f"{name}.partial.jsonl" if kind == "journal" else f"{name}.json"] = content
    for name, content in contents.items():
        (folder / name).write_text(content)
    return {folder / name for name in contents}


@settings(EXAMPLES, max_examples=40)
@given(wanted=FOLDER)
def test_every_file_is_accounted_for(made, wanted):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _put(folder, wanted, made)
        history = opened(folder)
        runs, named = [run.path for run in history.runs], {problem.path for problem in history.problems}
        assert {*runs} | named - {folder} == paths
        assert len({*runs}) == len(runs) == len({run.id for run in history.runs})
        whole = {number for number, kind in wanted.values() if kind in ("", "longer", "early", "journal")}
        assert len(runs) == len(whole)
        for run in history.runs:
            found = history.timelines[run.platform]
            for test in reader.read(run.path).results.tests:
                assert any(point.run is run for point in found.get(test.name, ()))
