"""Admission: what speaks against a test, of made-up records, and which failures a change touches."""

from __future__ import annotations

import importlib
import subprocess
from types import SimpleNamespace

import msgspec
import pytest
from installed import CHECKOUT
from record_checks import document

from pytest_rlregress.records.record_types import Record


@pytest.fixture
def admit(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "tools")
    return importlib.import_module("admit")


@pytest.fixture
def read(admit):
    """``read(group, *fresh)``: the results by the test's name, of the words of each repeat and of each fresh run."""

    def read(group, *fresh, seconds=1):
        found = {}
        runs = {admit.GROUP: {f"test_it[a-repeat{number}]": word for number, word in enumerate(group, 1)}}
        runs |= {f"fresh run {number}": {"test_it[a]": word} for number, word in enumerate(fresh, 1)}
        for run, words in runs.items():
            record = document(**words)
            for test in record["results"]["tests"]:
                test["duration"] = seconds * 1000
            made = msgspec.convert(record, Record)
            for name, result in admit.read_results(run, made):
                found.setdefault(name, []).append(result)
        return found

    return read


def test_nothing_speaks_against_a_test_that_always_says_the_same(admit, read):
    results = read(["held"] * 10, "held", "held")
    assert [*results] == ["test_it[a]"]
    assert len(results["test_it[a]"]) == 12
    assert admit.find_objections(results, {"test_it[a]": 600}, 12) == {}


def test_names_the_repeat_that_differs(admit, read):
    results = read(["held", "held", "regressed"], "held")
    assert admit.find_objections(results, {}) == {
        "test_it[a]": ["held in 3 of 4, but regressed in repeat 3 of one group"]
    }


def test_verdicts_that_do_not_fail_a_run_must_not_differ_either(admit, read):
    results = read(["reproduced"] * 2, "absent")
    assert admit.find_objections(results, {}) == {"test_it[a]": ["reproduced in 2 of 3, but absent in fresh run 1"]}


def test_refuses_a_test_that_always_fails(admit, read):
    results = read(["changed"] * 2, "changed")
    assert admit.find_objections(results, {}) == {"test_it[a]": ["changed in all 3: "]}


@pytest.mark.parametrize(
    ("limit", "said"), [(10, []), (9.9, ["took 8 s in fresh run 1, more than 80% of its limit, 9.9 s"])]
)
def test_refuses_a_test_that_takes_most_of_its_limit(admit, read, limit, said):
    results = read([], "held", "held", seconds=8)
    assert admit.find_objections(results, {"test_it[a]": limit}) == ({"test_it[a]": said} if said else {})
    assert admit.find_objections(results, {}) == {}


def test_refuses_a_test_whose_name_differs_between_runs(admit, read):
    (said,) = admit.find_objections(read([], "held"), {}, expected=2)["test_it[a]"]
    assert said == "ran 1 of 2 times: its name differs between runs; it was in fresh run 1"
    assert admit.find_objections(read([], "held"), {}) == {}


def test_a_test_that_a_stopped_run_did_not_reach_has_no_result(admit, read):
    results = read(["held", "held", "pending"], "held")
    assert [one.where for one in results["test_it[a]"]] == [
        "repeat 1 of one group",
        "repeat 2 of one group",
        "fresh run 1",
    ]
    plan = admit.Plan(repeats=3, fresh=2)
    unreached = admit.list_unreached(results, plan, ["fresh run 1", admit.GROUP])
    assert unreached == ["1 of 3 results in one group", "fresh run 2"]


def test_says_what_was_admitted_and_what_was_not(admit, read):
    results = read(["held"] * 3, "held")
    assert admit.describe_admitted(results, ["short-column"], []) == (
        "admitted: 1 test (1 held) said the same 4 times."
    )
    told = admit.describe_admitted(results, ["short-column", "other"], ["fresh run 2"])
    assert told.endswith("; no verdict here of other; not reached in time: fresh run 2.")
    once = admit.describe_admitted(read([], "held"), ["short-column"], [])
    assert once.startswith("nothing was admitted: no test gave a verdict twice")
    unavailable = admit.describe_admitted(read(["unavailable"] * 3), ["short-column"], [])
    assert unavailable.startswith("nothing was admitted")
    assert "no verdict here of short-column" in unavailable


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("f.py::test_it[repeat3]", ("f.py::test_it", 3)),
        ("f.py::test_it[a-repeat10]", ("f.py::test_it[a]", 10)),
        ("f.py::test_it[a]", ("f.py::test_it[a]", 0)),
        ("f.py::test_it", ("f.py::test_it", 0)),
    ],
)
def test_reads_the_repeat_from_a_name(admit, name, split):
    assert admit.split_name(name) == split


def test_runs_alone_first_and_shares_after(admit):
    assert admit.Plan(10, 2).list_runs() == [("fresh run 1", 1), ("one group", 10), ("fresh run 2", 1)]
    assert admit.Plan(0, 1).list_runs() == [("fresh run 1", 1)]
    assert admit.Plan(2, 0).list_runs() == [("one group", 2)]


@pytest.mark.process
def test_finds_the_failures_whose_folders_a_change_touches(admit, tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=tmp_path, check=True)

    shipped = CHECKOUT / "scenarios"
    for place in ("tokens/pad_is_eos", "launch/silent_exit_zero", "launch/console_encoding"):
        folder = tmp_path / "scenarios" / place
        folder.mkdir(parents=True)
        (folder / "failure.toml").write_text((shipped / place / "failure.toml").read_text())
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "begun")
    assert admit.list_changed("main", tmp_path) == []
    git("checkout", "-q", "-b", "change")
    (tmp_path / "scenarios/tokens/pad_is_eos/test_it.py").write_text("committed")
    git("add", ".")
    git("commit", "-q", "-m", "changed")
    (tmp_path / "scenarios/launch/silent_exit_zero/test_it.py").write_text("not yet")
    (tmp_path / "scenarios/launch/conftest.py").write_text("the area's")
    assert sorted(admit.list_changed("main", tmp_path)) == ["pad-is-eos", "silent-exit-zero"]


@pytest.mark.parametrize(
    ("reproduces", "kind", "hangs"), [(True, "hung", True), (True, "failed", False), (False, "hung", False)]
)
def test_an_act_that_hangs_as_documented_has_no_limit_to_keep(admit, reproduces, kind, hangs):
    failure = SimpleNamespace(signatures=[SimpleNamespace(kind=kind)])
    test = SimpleNamespace(reproduces=reproduces, side=SimpleNamespace(failure=failure))
    assert importlib.import_module("repeats")._hangs_as_documented(test) == hangs
