"""The record of a run: what is in it, whichever way the run ends."""

from __future__ import annotations

import json
import math
import platform
import resource
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest
from made_failures import FAILURES, write_failures
from record_checks import checked, named, strict, words

from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.hardware.processor import cpu
from pytest_rlregress.harness import run_context, settings
from pytest_rlregress.harness.collection import stable_id
from pytest_rlregress.harness.session import find
from pytest_rlregress.records.reader import flipped, lock
from pytest_rlregress.records.record_types import FORMAT
from pytest_rlregress.stack import locks
from pytest_rlregress.util.files import write_whole

PROPERTIES = {
    "rlregress_measured": {
        "key": {"device": 'a <b> & "c"', "torch": "2.13", "engine": "vllm 0.31", "attention": "x", "dtype": "float32"},
        "runs": [{"variant": "token", "steps": 2, "loss": [0.5, math.nan], "grad_norm": [math.inf, 1]}],
    },
}
SIDED = f"""
import json, math, os, pytest
inf, nan = math.inf, math.nan
PROPERTIES = {PROPERTIES!r}

@pytest.mark.reproduces("short-column")
def test_act():
    raise AssertionError("column x is short")

@pytest.mark.reproduces("short-column")
def test_dies():
    os.abort()

@pytest.mark.guards("short-column")
def test_remedy(record_property):
    for name, value in PROPERTIES.items():
        record_property(name, json.dumps(value))

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
def test_passes(word, record_property):
    record_property("rlregress_measured", "by another plugin, in its own words")

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
        return result, path, checked(strict(path.read_text(encoding="utf-8")))["results"]

    return recorded


def agree(junit, results):
    """Whether junit's cases have the properties that the record's tests have: texts, and objects as their JSON."""
    cases = {case.get("name"): case for case in ET.parse(junit).iter("testcase")}
    judged = {name: test["extra"] for name, test in named(results).items() if test["extra"]}
    assert {extra["verdict"] for extra in judged.values()} == {"reproduced", "crashed", "held", "unavailable"}
    for name, extra in judged.items():
        said = {one.get("name"): one.get("value") for one in cases[name].iter("property")}
        for field, value in extra.items():
            text = said[f"rlregress_{field}"]
            assert value == (text if isinstance(value, str) else json.loads(text, parse_constant=lambda _: None))


@pytest.mark.parametrize("distributed", [pytest.param((), marks=pytest.mark.slow), ("-n2",)], ids=["alone", "xdist"])
def test_run_writes_a_complete_record(pytester, recorded, distributed):
    pytester.makeini("[pytest]\nrlregress_scenarios = mine\nrlregress_timeout = 500\n")
    pytester.makeconftest(LOOK)
    mine = pytester.mkdir("mine")
    write_failures(mine, FAILURES)
    (mine / "test_sided.py").write_text(SIDED)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True, cwd=pytester.path)
    (mine / "test_sided.py").write_text(f"{SIDED}\n")
    files = {"test_plain": PLAIN, "test_broken": "import no_such_module"}
    changed = ("-o", "rlregress_stall=9", "-o", "console_output_style=count")
    args = (*WRITE, "--hw=cpu", ".", "--junitxml=junit.xml", *changed, *distributed)
    result, path, results = recorded(files, *args)

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

    measured = PROPERTIES["rlregress_measured"]
    [numbers] = measured["runs"]  # JSON has no word for what is not a number
    numbers = {**numbers, "loss": [0.5, None], "grad_norm": [None, 1]}
    assert tests["test_remedy"]["extra"]["measured"] == {**measured, "runs": [numbers]}
    assert tests["b]"]["extra"] == {}
    agree(pytester.path / "junit.xml", results)

    extra = results["extra"]
    assert (extra["format"], extra["state"]) == (FORMAT, "complete")
    assert extra["run"]["arguments"][-len(args) :] == [*args]
    assert extra["run"]["selection"] == ["."]
    assert extra["run"]["settings"] == {
        "ini file": "tox.ini",
        "rlregress_scenarios": "mine",
        "rlregress_timeout": "500.0",
        "rlregress_stall": "9.0",
        "console_output_style": "count",
    }
    assert lock(path) == locks.installed()
    assert flipped(path, path) == []
    assert extra["stack"]["versions"]["torch"] == locks.installed().version("torch")
    assert extra["hardware"]["profile"] == "cpu"
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=pytester.path)
    assert extra["git"] == {"commit": head.stdout.strip(), "dirty": True}
    assert extra["stack"]["python"] == platform.python_version()


@pytest.mark.parametrize(
    ("ends", "args", "ended"),
    [
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", (), "other interrupted"),
        ("heard(); os.kill(os.getppid(), signal.SIGINT); time.sleep(30)", ("-n1",), "other interrupted"),
        ("assert 0", ("-x",), "failed failed"),
        ("os._exit(9)", ("-n1", "--max-worker-restart=0"), "failed failed"),
    ],
    ids=["ctrl-c", "ctrl-c-xdist", "x", "worker-crash"],
)
def test_run_that_ends_early_writes_a_record(pytester, monkeypatch, recorded, ends, args, ended):
    monkeypatch.setenv("RLREGRESS_RECORD_DIR", "records/deep")
    tests = f"""
import os, pathlib, signal, time
def heard():
    journal = next(pathlib.Path("records/deep").glob("*"))
    while "test_ends" not in journal.read_text().partition('Status": "interrupted')[2]:
        time.sleep(0.1)
def test_before(): pass
def test_ends(): {ends}
def test_after(): pass
"""
    _, _, results = recorded(tests, *PLUGINS, *args, into="records/deep")
    assert results["extra"]["state"] == "interrupted"
    assert words(results) == {"test_before": "passed passed", "test_ends": ended, "test_after": "pending pending"}


def test_record_keeps_the_last_result_of_a_rerun(pytester, recorded):
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


def test_rejects_an_unwritable_folder_before_the_run(pytester, run, light):
    pytester.makefile(".txt", file="in the way")
    result = run("def test_it(): print('RUNS')", "-s", *PLUGINS, "--rl-record-dir=file.txt/records")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*command line --rl-record-dir: no record can be written to */file.txt/records: *"])
    result.stdout.no_fnmatch_line("*RUNS*")


def test_rejects_an_empty_folder_name(pytester):
    config = pytester.parseconfig("--rl-record-dir=")
    with pytest.raises(pytest.UsageError, match="--rl-record-dir: '' is not allowed"):
        settings.resolve(config)


def test_folder_deleted_during_the_run_fails_it(run, light):
    gone = "import pathlib, shutil\ndef test_it():\n    shutil.rmtree('records')\n    pathlib.Path('records').touch()\n"
    result = run(gone, *WRITE)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["FAILED: the record could not be written: */records/*.json: *", "*1 passed*"])


def test_record_survives_a_deleted_folder_and_another_failing_report(recorded):
    spoils = """
import pathlib, shutil
def test_it():
    shutil.rmtree("records")
    pathlib.Path("junit").touch()
"""
    result, path, results = recorded(spoils, *WRITE, "--junitxml=junit/out.xml")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert (path.suffix, results["summary"]["passed"]) == (".json", 1)


def test_collecting_alone_writes_no_record(pytester, run, light):
    assert run("def test_it(): pass", *WRITE, "--collect-only").ret == 0
    assert list(pytester.path.glob("records/*")) == []


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        write_whole(tmp_path / "small.json", "1")
        with pytest.raises(OSError, match="too large"):
            write_whole(tmp_path / "large.json", "x" * 9000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]


def test_a_shipped_scenario_has_the_same_name_everywhere(recorded):
    module = "pytest_rlregress.scenarios.launch.console_encoding.test_console_encoding"
    _, _, results = recorded({}, *WRITE, "-n1", "--hw=cpu", "--pyargs", module)
    assert {test["name"].partition("::")[0] for test in results["tests"]} == {
        "launch/console_encoding/test_console_encoding.py"
    }
    assert {test["extra"]["verdict"] for test in results["tests"]} == {"reproduced", "held"}


def test_tests_have_stable_ids(tmp_path):
    shipped = next(SHIPPED.resolve().glob("batch/*/test_*.py"))
    name = shipped.relative_to(SHIPPED.resolve()).as_posix()
    link = tmp_path / "link"
    link.symlink_to(SHIPPED.resolve())
    wanted = f"{name}::test_y[a::b]"
    for path in (shipped, SHIPPED / name, link / name):
        assert stable_id(f"any/where.py::{wanted.partition('::')[2]}", path) == wanted
    assert stable_id("scenarios/batch", SHIPPED / "batch") == "batch"
    assert stable_id("batch/test_x.py::test_y", tmp_path / "batch" / "test_x.py") == "batch/test_x.py::test_y"


def test_record_names_the_processor_of_this_machine():
    found = cpu()
    assert found["model"] in Path("/proc/cpuinfo").read_text() + platform.machine()
    assert 1 <= found["cores"] <= psutil.cpu_count()


@pytest.mark.parametrize(
    ("arguments", "variables", "selection"),
    [
        (["-q", "-x", "--maxfail=2", "-p", "no:randomly", "--rl-strict"], {}, []),
        (["-k", "one or two", "test_it.py"], {}, ["-k one or two", "test_it.py"]),
        (
            ["-kone", "-m", "not slow", "--deselect=a::b", "--ignore", "c"],
            {},
            ["-k one", "-m not slow", "--deselect a::b", "--ignore c"],
        ),
        (["--last-failed"], {}, ["--lf"]),
        ([], {"RLREGRESS_LONG": "yes"}, ["--rl-long"]),
        (["--rl-quick", "--sw"], {}, ["--rl-quick", "--sw"]),
        (["--rl-failure=double-bos", "--rl-component=vllm"], {}, ["--rl-failure double-bos", "--rl-component vllm"]),
    ],
)
def test_a_record_says_what_chose_its_tests(pytester, monkeypatch, arguments, variables, selection):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = pytester.parseconfigure(*arguments)
    assert run_context.describe_call(find(config), config).selection == selection
