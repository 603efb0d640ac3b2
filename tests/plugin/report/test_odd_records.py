"""Records that are broken or mean, among good ones: the good ones are told of, and no text of a record acts."""

from __future__ import annotations

import copy
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_rlregress.cli import main
from pytest_rlregress.failures.verdicts import Verdict
from pytest_rlregress.records import record_types
from pytest_rlregress.records.answer import with_tests


def make_record():
    extra = record_types.RunExtra(record_types.FORMAT, record_types.InstalledStack(["six==1.0"], "3.11.7", {}))
    extra.hardware.profile = "cpu"
    failed = record_types.RecordedTest("test_a.py::test_a", "failed", "failed", 5, "test_a.py", message="assert 0")
    record = with_tests(record_types.begun(1_700_000_000_000, extra), [failed], "complete", 1_700_000_001_000)
    import msgspec

    return msgspec.to_builtins(record)


def set_start(record, start):
    record["results"]["summary"]["start"] = start


def set_name(record, name):
    record["results"]["tests"][0]["name"] = name


ODD = {
    "400 digits": lambda one: set_start(one, "HUGE"),
    "year 1": lambda one: set_start(one, -62135596800000),
    "year 9999": lambda one: set_start(one, 253402300799000),
    "1e30": lambda one: set_start(one, 10**30),
    "megabyte": lambda one: set_name(one, "a" * 10**6),
    "half a character": lambda one: set_name(one, "a\ud83d"),
    "control": lambda one: set_name(one, "\x1b]0;title\x07\n## A heading @everyone <b>"),
    "verdict": lambda one: one["results"]["tests"][0].update(extra={"verdict": "## no\x1b[2J @everyone"}),
    "profile": lambda one: one["results"]["extra"]["hardware"].update(profile="x\n## A heading @everyone\x1b"),
    "answer": lambda one: one["results"]["extra"].update(answer=["F \x1b]0;t\x07\n## A heading @everyone <b>"]),
    "packages": lambda one: one["results"]["extra"]["stack"].update(requirements=["\x1b\n## a", "", "-e ", "@"]),
    "duration": lambda one: one["results"]["tests"][0].update(duration=10**400 // 7),
    "null": lambda one: one.update(results=None),
    "deep": lambda one: one["results"]["tests"][0].update(extra={"measured": {"a": json.loads("[" * 400 + "]" * 400)}}),
    "runs": lambda one: one["results"]["tests"][0].update(extra={"measured": {"runs": [{"loss": ["x", None, {}]}]}}),
    "measured": lambda one: one["results"]["tests"][0].update(extra={"measured": {"runs": 5, "variant": []}}),
    "cpu": lambda one: one["results"]["extra"]["hardware"].update(cpu={"model": "\x1b", "cores": -1}),
    "git": lambda one: one["results"]["extra"].update(git={"commit": "-x\n## y\x1b", "dirty": True}),
}


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Report of a good record and an odd one; what is printed, and the Markdown."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rec").mkdir()

    def told(odd, *options):
        (tmp_path / "rec/good.json").write_text(json.dumps(make_record()))
        (tmp_path / "rec/odd.json").write_text(odd)
        code = main(["report", "rec", "--markdown", "out.md", *options])
        out, err = capsys.readouterr()
        assert code in (0, 1), err[:3000]
        assert "Traceback" not in err
        return out, (tmp_path / "out.md").read_text()

    return told


def make_odd(change):
    odd = copy.deepcopy(make_record())
    odd["reportId"] = "other"
    change(odd)
    return json.dumps(odd).replace('"HUGE"', "1" + "0" * 400)


@pytest.mark.parametrize(
    "options", [[], ["--output", "page.html"], ["--json", "out.json"]], ids=["text", "page", "json"]
)
@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_odd_record_is_named_and_costs_no_other(told, change, options):
    for shown in told(make_odd(change), *options):
        assert "`test_a.py::test_a`" in shown
        assert "\x1b" not in shown
        assert "\n## A heading" not in shown
        assert "@everyone" not in shown.replace("`", "\0`").split("\0")[0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "5", "[" * 9999, '{"reportFormat": "CTRF"}', "\0", '{"a": 1}\n{"b"']
)
def test_file_that_is_no_record_is_named(told, text):
    for shown in told(text):
        assert "`test_a.py::test_a`" in shown
        assert "odd.json" in shown


def test_pipe_and_folder_among_records(told, tmp_path):
    os.mkfifo(tmp_path / "rec/pipe.json")
    (tmp_path / "rec/folder.json").mkdir()
    for shown in told("{}"):
        assert "`test_a.py::test_a`" in shown


def leaves(value, path=()):
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield from ((path, value),) if path else ()
    for key, one in inside:
        yield from leaves(one, (*path, key))


ANY = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just([]) | st.just({})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_record_with_any_value_anywhere(told, data):
    odd = make_record()
    odd["reportId"] = "other"
    odd["results"]["tests"][0]["extra"] = {
        "verdict": data.draw(st.sampled_from([*Verdict])),
        "measured": {"runs": [{}]},
    }
    path, _ = data.draw(st.sampled_from([*leaves(odd)]))
    table = odd
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = data.draw(ANY)
    for shown in told(json.dumps(odd)):
        assert "\x1b" not in shown
        assert "`test_a.py::test_a`" in shown
