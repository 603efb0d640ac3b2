"""The records of other stacks are complete and looked into, their locks say all, and the page is what they give."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys

import pytest
from installed import CHECKOUT
from made_failures import write_failures

from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.verdicts import Verdict
from pytest_rlregress.stack import locks

LOCKS = sorted((CHECKOUT / "requirements" / "stacks").glob("*.txt"))
RECORDS = sorted((CHECKOUT / "requirements" / "stacks").glob("*.json"))
HARNESS = {"hypothesis", "msgspec", "nvidia-ml-py", "packaging", "psutil", "py-spy", "pytest", "pytest-xdist", "pyyaml"}
FAILURES = """
id = "short-column"
title = "t"
seen_on = "H20"
components = {}
cause = "c"
remedy = "r"

[[signature]]
says = ["short"]
"""
TESTS = """
import pytest

@pytest.mark.reproduces("short-column")
def test_act():
    raise ValueError("short")

@pytest.mark.reproduces("short-column")
def test_other_act():
    raise ValueError("\\x1b[36mlong\\x1b[0m, see /some/where/log.txt, at 0x7f80710ddc90 (pid=23841, ip=192.0.2.2)")

@pytest.mark.guards("short-column")
def test_remedy():
    pass

@pytest.mark.needs("windows")
@pytest.mark.guards("short-column")
def test_elsewhere():
    pass

def test_of_no_failure():
    assert {good}
"""


@pytest.fixture
def script(monkeypatch):
    """A script of requirements/, by name."""
    monkeypatch.syspath_prepend(CHECKOUT / "requirements")
    return importlib.import_module


# -- what is shipped ----------------------------------------------------------------------------------------------


def test_there_are_locks_and_each_is_asked_for(script):
    assert len(LOCKS) >= 6
    assert [path.stem for path in LOCKS] == sorted(one.name for one in script("stack_locks").REQUESTS)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_says_what_it_is_and_all_that_it_has(path):
    about, *lines = path.read_text().splitlines()
    assert about.startswith("# ")
    assert len(about) <= 120
    assert locks.read(path).lines.keys() >= HARNESS | {"torch", "transformers", "trl", "uv", "pip"}
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line)] == []  # no place, no host


def test_two_days_were_drawn(script):
    module = script("stack_locks")
    days = {request.name: request.day for request in module.REQUESTS}
    assert sorted(day for day in days.values() if day in module.DRAWN) == module.DRAWN
    assert len(module.DRAWN) == 2


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_every_failure(script, path):
    record = script("stack_records").read(path)
    sides = {key: result.word for key, result in record.items() if key.endswith((" reproduces", " guards"))}
    newest = script("stack_records").read(CHECKOUT / "requirements/stacks/newest.json")
    tested = {failure.id for failure in catalogue.load([catalogue.SHIPPED]).values() if failure.fidelity}
    assert {key.partition(" ")[0] for key in sides} == tested
    assert [key for key in newest if key.endswith((" reproduces", " guards")) and key not in sides] == []
    assert set(sides.values()) <= set(Verdict)


def test_every_lock_has_a_record():
    assert [path.stem for path in RECORDS] == [path.stem for path in LOCKS]


def test_every_bad_verdict_was_looked_into(script):
    page, records = script("stacks_page"), script("stack_records")
    bad = {(path.stem, key, result.word) for path in RECORDS for key, result in records.bad(records.read(path)).items()}
    reasons = page.reasons()
    assert sorted(bad - reasons.keys()) == []
    assert sorted(reasons.keys() - bad) == [], "these are gone from the records"
    assert [key for key, reason in reasons.items() if len(reason) < 20] == []


def test_the_page_is_what_the_records_give(script):
    assert (CHECKOUT / "docs/stacks.md").read_text() == script("stacks_page").shipped(), "run `make docs`"


def test_its_links_lead_somewhere():
    page = (CHECKOUT / "docs/stacks.md").read_text()
    found = re.findall(r"\]\(([^)#]+)", page)
    assert found
    assert [link for link in found if not (CHECKOUT / "docs" / link).exists()] == []


# -- how records are made -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The records of two runs, in the first of which a test of no failure fails."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "pytest.ini").write_text("[pytest]\nrlregress_scenarios = .\n")
    write_failures(folder, FAILURES)
    found = []
    for good in (False, True):
        (folder / "test_it.py").write_text(TESTS.format(good=good))
        command = [sys.executable, "-m", "pytest", "--hw=cpu", "-q", f"--rl-record-dir=records{good}", "test_it.py"]
        subprocess.run(command, cwd=folder, capture_output=True, timeout=120)
        found += (folder / f"records{good}").glob("*.json")
    return found


@pytest.mark.slow
def test_the_gravest_verdict_counts_and_its_note_names_no_machine(script, runs, tmp_path):
    module = script("stack_records")
    record = module.shorten(runs[0])
    assert {key: result.word for key, result in record.items()} == {
        "short-column reproduces": "changed",
        "short-column guards": "held",
        "test_it.py::test_of_no_failure": "failed",
    }
    assert record["short-column reproduces"].note.endswith("ValueError: long, see …/log.txt, at … …")
    module.write(tmp_path / "short.json", record)
    assert module.read(tmp_path / "short.json") == record
    assert len((tmp_path / "short.json").read_text().splitlines()) == len(record) + 2


@pytest.mark.slow
def test_a_test_of_no_failure_changes_too(script, runs):
    module = script("stack_records")
    before, after = map(module.shorten, runs)
    [change] = module.changes(before, after)
    assert (change.key, change.before.word, change.after.word) == ("test_it.py::test_of_no_failure", "failed", "passed")
    [back] = module.changes(after, before)
    assert (back.before, back.after) == (change.after, change.before)


def test_a_run_of_some_folders_takes_the_place_of_what_the_record_has_of_them(script):
    module = script("stack_records")
    known, new = module.SideResult("held"), module.SideResult("regressed", "off by one")
    passing = ["dataproto-concat-keys guards", "placement-group-pending guards", "torch component"]
    gone = ["of-old guards", "batch/test_old.py::test_it"]
    before = dict.fromkeys([*passing, *gone, "cluster/test_other.py::test_it"], known)
    part = {"dataproto-concat-keys guards": new, "vllm component": known}
    assert module.replaced(before, part, ["batch"]) == {
        "cluster/test_other.py::test_it": known,
        "placement-group-pending guards": known,
        "torch component": known,
        "dataproto-concat-keys guards": new,
        "vllm component": known,
    }


@pytest.mark.slow
def test_a_run_that_was_interrupted_is_no_record(script, runs, tmp_path):
    record = json.loads(runs[0].read_text())
    record["results"]["extra"] |= {"state": "interrupted"}
    (tmp_path / "cut.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="interrupted"):
        script("stack_records").shorten(tmp_path / "cut.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "newst"], "no stack newst; there are december-2025"),
        (["run", "newest", "--only", "bach"], "no folder of scenarios bach"),
        (["build", "newest", "--only", "batch"], "--only is for run"),
    ],
)
def test_what_is_not_known_is_refused(script, capsys, arguments, said):
    with pytest.raises(SystemExit):
        script("stacks").main(arguments)
    assert said in capsys.readouterr().err
