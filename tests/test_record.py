"""The record of a run: what is in it, whichever way the run ends, and what is read out of two of them."""

from __future__ import annotations

import copy
import json
import resource
import subprocess

import jsonschema
import pytest

from pytest_rlregress import locks, settings
from pytest_rlregress.catalogue import SHIPPED
from pytest_rlregress.keys import key
from pytest_rlregress.records import ctrf
from pytest_rlregress.records.collector import write
from pytest_rlregress.records.reader import FORMAT, Flip, RecordError, flipped

TEXT, COUNT, FREE = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}, {"type": "object"}
WORD = {"enum": ["passed", "failed", "skipped", "pending", "other"]}


def table(optional=None, **required):
    """The schema of an object that has all of these, may have those, and nothing else."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


# What https://ctrf.io asks of the fields that are written here.
SCHEMA = table(
    reportFormat={"const": "CTRF"},
    specVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    reportId={"type": "string", "format": "uuid"},
    timestamp={"type": "string", "format": "date-time"},
    generatedBy=TEXT,
    results=table(
        tool=table(name=TEXT, version=TEXT),
        summary=table(**dict.fromkeys(("tests", *WORD["enum"], "start", "stop"), COUNT)),
        tests={
            "type": "array",
            "items": table(
                {**dict.fromkeys(("message", "trace"), TEXT), "retries": COUNT, "flaky": {"type": "boolean"}}
                | {"extra": FREE},
                name=TEXT,
                status=WORD,
                rawStatus=TEXT,
                duration=COUNT,
                filePath=TEXT,
            ),
        },
        environment=table({"commit": TEXT}, osPlatform=TEXT, osRelease=TEXT, osVersion=TEXT),
        extra=FREE,
    ),
)
FAILURES = """
[[failure]]
id = "short-column"
title = "A column is short"
seen_on = "H20"
components = {}
cause = "c"
remedy = "r"
signature = [{ exception = "AssertionError", message = "column .* is short" }]
"""
SIDED = """
import os, pytest

@pytest.mark.reproduces("short-column")
def test_act():
    raise AssertionError("column x is short")

@pytest.mark.reproduces("short-column")
def test_dies():
    os.abort()

@pytest.mark.guards("short-column")
def test_remedy():
    pass

@pytest.mark.needs("windows")
@pytest.mark.guards("short-column")
def test_elsewhere():
    pass
"""
PLAIN = """
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError("left open")

def test_fails():
    assert 1 == 2, "not equal"

@pytest.mark.parametrize("word", ["a::b", "\\ud800"])
def test_passes(word):
    pass

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass

@pytest.mark.xfail(reason="known")
def test_expected():
    raise ValueError

def test_not_torn_down(broken):
    pass
"""
LOOK = """
import sys

def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        print("IMPORTED", sorted({"torch", "numpy", "ray", "requests"} & set(sys.modules)))
"""


PLUGINS = ("-p", "pytest_rlregress.plugin", "-p", "xdist")
WRITE = (*PLUGINS, "--rl-record-dir=records")


@pytest.fixture
def light(monkeypatch):
    """Only the plugins that are named: half of the time of these runs."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def recorded(pytester, run, light):
    """Run pytest on files of tests: ``recorded(files, *args)`` gives its result and the one record."""

    def recorded(files, *args, into="records"):
        before = set(pytester.path.glob(f"{into}/*"))
        result = run(files, *args)
        [path] = set(pytester.path.glob(f"{into}/*")) - before
        return result, path, checked(json.loads(path.read_text(encoding="utf-8")))["results"]

    return recorded


def checked(record):
    jsonschema.validate(record, SCHEMA, format_checker=jsonschema.FormatChecker())
    summary, tests = record["results"]["summary"], record["results"]["tests"]
    assert summary["stop"] >= summary["start"]
    words = [test["status"] for test in tests]
    assert {word: words.count(word) for word in WORD["enum"]} == {word: summary[word] for word in WORD["enum"]}
    assert summary["tests"] == len(tests)
    return record


def named(results):
    return {test["name"].rpartition("::")[2]: test for test in results["tests"]}


@pytest.mark.parametrize("distributed", [(), ("-n2",)], ids=["alone", "xdist"])
def test_what_a_run_writes(pytester, recorded, distributed):
    pytester.makeini("[pytest]\nrlregress_scenarios = mine\n")
    pytester.makeconftest(LOOK)
    mine = pytester.mkdir("mine")
    (mine / "failures.toml").write_text(FAILURES)
    (mine / "test_sided.py").write_text(SIDED)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True, cwd=pytester.path)
    (mine / "test_sided.py").write_text(f"{SIDED}\n")
    files = {"test_plain": PLAIN, "test_broken": "import no_such_module"}
    result, path, results = recorded(files, *WRITE, "--hw=cpu", ".", *distributed)

    assert result.ret == 1
    result.stdout.fnmatch_lines([f"record: {path}"])
    result.stdout.fnmatch_lines(["IMPORTED []"])
    tests = named(results)
    assert {name: (test["status"], test["rawStatus"]) for name, test in tests.items()} == {
        "test_act": ("passed", "passed"),
        "test_dies": ("failed", "failed"),
        "test_remedy": ("passed", "passed"),
        "test_elsewhere": ("skipped", "skipped"),
        "test_broken.py": ("failed", "error"),
        "test_fails": ("failed", "failed"),
        "b]": ("passed", "passed"),
        "test_passes[\\ud800]": ("passed", "passed"),
        "test_skipped": ("skipped", "skipped"),
        "test_expected": ("other", "xfailed"),
        "test_not_torn_down": ("failed", "error"),
    }
    act = {"failure": "short-column", "side": "reproduces", "verdict": "reproduced"}
    assert tests["test_act"]["extra"].items() >= act.items()
    assert "column x is short" in tests["test_act"]["trace"]
    assert tests["test_act"]["filePath"] == "mine/test_sided.py"
    assert tests["test_dies"]["extra"]["verdict"] == "crashed"
    assert "SIGABRT" in tests["test_dies"]["message"]
    assert tests["test_elsewhere"]["extra"]["note"] == tests["test_elsewhere"]["message"]
    assert tests["test_fails"]["message"].startswith("AssertionError: not equal")
    assert "assert 1 == 2" in tests["test_fails"]["trace"]
    assert "no_such_module" in tests["test_broken.py"]["trace"]
    assert tests["test_skipped"]["message"] == "not today"
    assert not any("flaky" in test for test in tests.values())

    extra = results["extra"]
    assert (extra["format"], extra["interrupted"]) == (FORMAT, False)
    assert locks.read(path) == locks.installed()
    assert flipped(path, path) == []
    assert extra["stack"]["versions"]["torch"] == locks.installed().version("torch")
    assert extra["hardware"]["profile"] == "cpu"
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=pytester.path)
    assert extra["git"] == {"commit": head.stdout.strip(), "dirty": True}
    assert results["environment"]["commit"] == head.stdout.strip()


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(reportFormat="JUnit"),
        lambda record: record.pop("specVersion"),
        lambda record: record["results"]["tests"][0].update(duration=0.5),
        lambda record: record["results"]["tests"][0].update(status="held"),
        lambda record: record["results"]["tests"][0].update(verdict="held"),
        lambda record: record["results"]["summary"].update(passed=2),
    ],
)
def test_the_check_finds_what_is_wrong(change):
    record = document(held="held")
    checked(copy.deepcopy(record))
    change(record)
    with pytest.raises((jsonschema.ValidationError, AssertionError)):
        checked(record)


@pytest.mark.parametrize(
    ("ends", "args", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(9)", (), "other interrupted"),
        ("assert 0", ("-x",), "failed failed"),
        ("import os; os._exit(9)", ("-n1", "--max-worker-restart=0"), "failed failed"),
    ],
    ids=["ctrl-c", "x", "worker-crash"],
)
def test_a_run_that_ends_early(pytester, monkeypatch, recorded, ends, args, words):
    monkeypatch.setenv("RLREGRESS_RECORD_DIR", "records/deep")
    tests = f"def test_before(): pass\ndef test_ends(): {ends}\ndef test_after(): pass\n"
    _, _, results = recorded(tests, *PLUGINS, *args, into="records/deep")
    assert results["extra"]["interrupted"]
    found = {name: f"{test['status']} {test['rawStatus']}" for name, test in named(results).items()}
    assert found == {"test_before": "passed passed", "test_ends": words, "test_after": "pending pending"}


def test_a_test_that_is_run_again(pytester, recorded):
    pytester.makeini("[pytest]\nrlregress_record_dir = records\n")
    pytester.makeconftest("""
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item):
            if not item.stash.get("again", False):
                item.stash["again"] = True
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=item)
            return (yield)
        """)
    _, _, results = recorded("seen = []\ndef test_it():\n    seen.append(1)\n    assert len(seen) > 1\n", *PLUGINS)
    [test] = results["tests"]
    assert (test["status"], test["retries"], test["flaky"]) == ("passed", 1, True)
    assert "message" not in test


def test_no_folder_to_write_to_is_said_before_the_run(pytester, run, light):
    pytester.makefile(".txt", file="in the way")
    result = run("def test_it(): print('RUNS')", "-s", *PLUGINS, "--rl-record-dir=file.txt/records")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*command line --rl-record-dir: no record can be written to */file.txt/records: *"])
    result.stdout.no_fnmatch_line("*RUNS*")


def test_an_empty_name_is_no_folder(pytester):
    config = pytester.parseconfig("--rl-record-dir=")
    with pytest.raises(pytest.UsageError, match="--rl-record-dir: '' is not allowed"):
        settings.resolve(config)


def test_a_folder_that_is_gone_at_the_end_fails_the_run(run, light):
    gone = "import pathlib, shutil\ndef test_it():\n    shutil.rmtree('records')\n    pathlib.Path('records').touch()\n"
    result = run(gone, *WRITE)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["FAILED: the record could not be written: */records/*.json: *", "*1 passed*"])


def test_another_report_that_cannot_be_written_costs_no_record(recorded):
    blocks = "import pathlib\ndef test_it(): pathlib.Path('junit').touch()\n"
    result, _, results = recorded(blocks, *WRITE, "--junitxml=junit/out.xml")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert results["summary"]["passed"] == 1


def test_nothing_is_written_where_nothing_ran(pytester, run, light):
    assert run("def test_it(): pass", *WRITE, "--collect-only").ret == 0
    assert list(pytester.path.glob("records/*")) == []


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        write(tmp_path / "small.json", {"a": 1})
        with pytest.raises(OSError, match="too large"):
            write(tmp_path / "large.json", {"a": "x" * 9000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]


def test_a_shipped_scenario_has_the_same_name_everywhere(recorded):
    module = "pytest_rlregress.scenarios.dependencies.test_nccl_not_on_windows"
    _, _, results = recorded({}, *WRITE, "-n1", "--pyargs", module, "-k", "test_pip_on_windows")
    [test] = results["tests"]
    assert test["name"] == "dependencies/test_nccl_not_on_windows.py::test_pip_on_windows"
    assert test["extra"]["verdict"] == "unavailable"


def test_keys(tmp_path):
    shipped = next(SHIPPED.resolve().glob("batch/test_*.py"))
    link = tmp_path / "link"
    link.symlink_to(SHIPPED.resolve())
    wanted = f"batch/{shipped.name}::test_y[a::b]"
    for path in (shipped, SHIPPED / "batch" / shipped.name, link / "batch" / shipped.name):
        assert key(f"any/where.py::{wanted.partition('::')[2]}", path) == wanted
    assert key("scenarios/batch", SHIPPED / "batch") == "batch"
    assert key("batch/test_x.py::test_y", tmp_path / "batch" / "test_x.py") == "batch/test_x.py::test_y"


def document(stack=("torch==2.9.0",), form=FORMAT, **tests):
    """A record in which each test has this verdict, or this word of pytest's."""
    entries = []
    for name, word in tests.items():
        status = word if word in ("passed", "failed", "skipped", "pending") else "passed"
        entry = {"name": name, "status": status, "rawStatus": status, "duration": 1, "filePath": "test_x.py"}
        if word != status:
            entry["extra"] = {"failure": "short-column", "verdict": word}
        entries.append(entry)
    extra = {"format": form, "stack": {"requirements": list(stack)}}
    return json.loads(json.dumps(ctrf.report(entries, start=1, stop=2, commit=None, extra=extra)))


@pytest.fixture
def compare(tmp_path):
    """``compare(good, bad)`` of two records, as objects or as text."""

    def compare(*records):
        paths = (tmp_path / "good.json", tmp_path / "bad.json")
        for path, record in zip(paths, records, strict=True):
            path.write_text(record if isinstance(record, str) else json.dumps(record))
        return flipped(*paths)

    return compare


def test_what_went_from_good_to_bad(compare):
    good = document(a="absent", b="held", c="passed", d="held", e="failed", f="reproduced", g="passed", gone="held")
    bad = document(
        c="failed", b="regressed", a="reproduced", d="held", e="failed", f="reproduced", g="skipped", new="hung"
    )
    assert compare(good, bad) == [
        Flip("c", None, "passed", "failed"),
        Flip("b", "short-column", "held", "regressed"),
        Flip("a", "short-column", "absent", "reproduced"),
    ]
    assert compare(good, good) == []


def test_a_remedy_that_held_and_then_leaked_went_bad(compare):
    leaked = document(b="held")
    leaked["results"]["tests"][0].update(status="failed", rawStatus="error")
    assert compare(document(b="held"), leaked) == [Flip("b", "short-column", "held", "error")]
    unwanted = document(a="absent")  # as --rl-strict has it
    unwanted["results"]["tests"][0].update(status="failed", rawStatus="failed")
    assert compare(document(a="absent"), unwanted) == []


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (json.dumps(document(a="held"))[:-9], "cut off"),
        ("", "cut off"),
        ("[]", "no record of a run"),
        ('{"results": {"tests": []}}', "no record of a run"),
        ('{"results": {"tests": [1], "extra": {"format": 1}}}', "no record of a run"),
        (document(form=FORMAT + 1), f"format {FORMAT + 1}, known here up to {FORMAT}"),
        (document(stack=()), "what was installed"),
    ],
    ids=["truncated", "empty", "list", "foreign", "odd", "newer", "no-stack"],
)
def test_what_is_no_record(compare, record, words):
    with pytest.raises(RecordError, match=rf"good\.json: .*{words}"):
        compare(record, document())
    with pytest.raises(RecordError, match=rf"bad\.json: .*{words}"):
        compare(document(), record)


def test_a_record_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match=r"none\.json: cannot be read: No such file"):
        flipped(tmp_path / "none.json", tmp_path / "none.json")
