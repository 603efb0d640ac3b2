"""The records of other stacks are complete and looked into, their locks say all, and the pages are what they give."""

from __future__ import annotations

import datetime
import json
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from histories import Event, make
from installed import CHECKOUT
from made_failures import write_failures
from msgspec.structs import replace
from patience import PATIENCE

from pytest_rlregress.failures import catalogue, tried
from pytest_rlregress.failures.verdicts import Verdict
from pytest_rlregress.records import reader
from pytest_rlregress.records.record_types import HarnessProperties, PytestCall, RecordedTest
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
    assert False
"""


# -- what is shipped ----------------------------------------------------------------------------------------------


def test_every_lock_is_requested(script):
    assert len(LOCKS) >= 6
    assert [path.stem for path in LOCKS] == sorted(one.name for one in script("stack_locks").REQUESTS)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock_has_a_description_and_all_packages(path):
    about, *lines = path.read_text().splitlines()
    assert about.startswith("# ")
    assert len(about) <= 120
    assert locks.read(path).lines.keys() >= HARNESS | {"torch", "transformers", "trl", "uv", "pip"}
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line)] == []  # no place, no host


def test_two_days_are_the_drawn_ones(script):
    module = script("stack_locks")
    first = datetime.date(2025, 12, 1)
    days = random.Random("pytest-rlregress stacks").sample(range((datetime.date(2026, 10, 31) - first).days + 1), 2)
    assert [*module.DRAWN] == sorted((first + datetime.timedelta(day)).isoformat() for day in days)
    assert {request.day for request in module.REQUESTS} >= {*module.DRAWN}


def test_torchvision_is_that_of_the_torch(script):
    """As the locks have them that a resolver was left to make."""
    module = script("stack_locks")
    made = [text for text in map(str, (path.read_text() for path in LOCKS)) if "torchvision==" in text]
    pairs = [
        (re.search(r"^torch==([\d.]+)", text, re.MULTILINE)[1], re.search(r"torchvision==\S+", text)[0])
        for text in made
    ]
    assert {torch for torch, _ in pairs} >= {"2.9.1", "2.11.0", "2.13.0"}
    assert [module._find_torchvision(f"torch=={torch}") for torch, _ in pairs] == [pin for _, pin in pairs]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_every_failure(script, path):
    """``make stacks`` with a stack's and a failure's name adds one."""
    record = script("pages").read_record(path)
    sides = {key: result.word for key, result in record.items() if key.endswith((" reproduces", " guards"))}
    tested = {failure.id for failure in catalogue.load([catalogue.SHIPPED]).values() if failure.fidelity}
    recorded = {key.partition(" ")[0] for key in sides}
    assert recorded == tested
    assert set(sides.values()) <= set(Verdict)


def test_every_lock_has_a_record():
    assert [path.stem for path in LOCKS] == [path.stem for path in RECORDS]


def test_every_bad_verdict_has_a_finding(script):
    pages = script("pages")
    records = {path.stem: pages.select_bad(pages.read_record(path)) for path in RECORDS}
    bad = {(stack, key, result.word) for stack, record in records.items() for key, result in record.items()}
    reasons = pages.read_reasons()
    assert sorted(bad - reasons.keys()) == []
    assert sorted(reasons.keys() - bad) == [], "these are gone from the records"
    assert [key for key, reason in reasons.items() if len(reason) < 20] == []


def test_pages_equal_the_generated_ones(script):
    assert (CHECKOUT / "docs/stacks.md").read_text() == script("pages").make_stacks_page(), "run `make docs`"
    pages = {path.name: path.read_text() for path in (CHECKOUT / "docs/failures").glob("*.md")}
    assert pages == script("pages").make_failure_pages(), "run `make docs`"
    numbers = script("normal_numbers")
    assert numbers.PAGE.read_text() == numbers.make_page(), "run `make docs`"
    assert tried.FILE.read_text() == script("pages").make_tried(), "run `make docs`"


def test_the_numbers_of_good_tests_are_kept(script, monkeypatch, tmp_path):
    module = script("normal_numbers")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "numbers")
    events = [Event("unmeasured", 1, "grad_norm", "null")]
    good, broken = make(tmp_path, nights=2, platforms=("cpu",), tests=2, events=events)
    tests = reader.read(good).results.tests
    module.keep([replace(test, status="failed", raw_status="failed") for test in tests], "verl-0.7")
    assert not module.FOLDER.exists()
    module.keep(tests, "verl-0.7")
    [kept] = json.loads((module.FOLDER / "verl-0.7.json").read_text()).values()
    assert {*kept} == {"variant", "steps", "grad_norm", "reward", "loss", "agreement"}
    assert f"| token | 2 | {kept['grad_norm']:.3g} | " in module.make_page()
    module.keep(reader.read(broken).results.tests, "verl-0.7")
    assert "gradient norm, first" not in module.make_page().partition("##")[2]


def test_index_has_every_failure_once():
    listed = re.findall(r"^- \[.+\]\((.+)\.md\)", (CHECKOUT / "docs/failures/README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(catalogue.load([catalogue.SHIPPED]))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("unrecognised-model-type", ["KeyError: "]),
        ("fork-after-cuda", ["Cannot re-initialize CUDA in forked subprocess"]),
        ("partial-weight-sync", ["Nothing: no error, no warning.", "import load_checked", "/vllm/issues/52689)"]),
        ("stalled-rollout", ["Nothing goes on"]),
    ],
)
def test_page_shows_symptom_and_remedy(failure, words):
    page = (CHECKOUT / f"docs/failures/{failure}.md").read_text()
    assert [word for word in words if word not in page] == []


def test_links_of_the_page_exist():
    page = (CHECKOUT / "docs/stacks.md").read_text()
    found = re.findall(r"\]\(([^)#]+)", page)
    assert found
    assert [link for link in found if not (CHECKOUT / "docs" / link).exists()] == []


def test_an_address_of_a_stack_leads_to_its_row(script):
    module = script("pages")
    stacks = {one.name for one in module.read_stacks()}
    made = module.make_failure_pages()
    anchors = {name: re.findall(r'^\| <a id="(.+)"></a>\1 \|', page, re.MULTILINE) for name, page in made.items()}
    assert [name for name, found in anchors.items() if len(found) != len(set(found)) or set(found) - stacks] == []
    assert [name for name, page in made.items() if page.count("<a id=") != len(anchors[name])] == []
    assert {*anchors["mask-length-drift.md"]} == stacks
    told = module.make_stacks_page().partition("## What differs")[2].partition("## The bad")[0]
    links = re.findall(r"\[([^]]+)\]\(failures/([^)#]+)#([^)]+)\)", told)
    assert {"newest", "verl-0.4"} <= {link[0] for link in links}
    assert [link for link in links if link[0] != link[2] or link[2] not in anchors[link[1]]] == []
    assert not re.search(rf"[;,] ({'|'.join(map(re.escape, stacks))})\b", told), "a stack without its link"


# -- how records are made -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_worst_verdict_counts_and_its_note_names_no_machine(script, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nrlregress_scenarios = .\n")
    write_failures(tmp_path, FAILURES)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-q", "--rl-record-dir=records", "test_it.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE)
    (path,) = (tmp_path / "records").glob("*.json")
    module = script("stacks")
    record = module.shorten(module.read_complete(path))
    assert {key: result.word for key, result in record.items()} == {
        "short-column reproduces": "changed",
        "short-column guards": "held",
        "test_it.py::test_of_no_failure": "failed",
        "tests judged": "3 of 3",
    }
    assert record["short-column reproduces"].note.endswith("ValueError: long, see …/log.txt, at … …")
    module.write_record(tmp_path / "short.json", record)
    assert script("pages").read_record(tmp_path / "short.json") == record
    assert len((tmp_path / "short.json").read_text().splitlines()) == len(record) + 2

    cut = json.loads(path.read_text())
    cut["results"]["extra"] |= {"state": "interrupted"}
    path.write_text(json.dumps(cut))
    with pytest.raises(ValueError, match="interrupted"):
        module.read_complete(path)


def test_a_failure_that_ran_alone_takes_the_place_of_its_tests(script):
    def run(selection, *tests):
        made = [
            RecordedTest(
                f"{failure}::{word}", "passed", "passed", 1, "", extra=HarnessProperties(failure=failure, verdict=word)
            )
            for failure, word in tests
        ]
        return SimpleNamespace(tests=made, extra=SimpleNamespace(run=PytestCall(selection=selection)))

    runs = [
        run(["--rl-failure=nan"], ("nan", "changed")),  # before the first whole run
        run(["--rl-long"], ("nan", "held"), ("oom", "unavailable"), ("oom", "held"), ("", "failed")),
        run(["--rl-long", "--rl-failure=oom"], ("oom", "reproduced"), ("", "passed")),
    ]
    found = script("stacks").replace_rerun(runs)
    assert [test.name for test in found] == ["nan::held", "::failed", "oom::reproduced"]
    assert script("stacks").replace_rerun(runs[:1]) == []


@pytest.mark.parametrize("arguments", [["run", "newst"], ["build", "newest"], []])
def test_rejects_unknown_words_and_lists_the_known_names(script, arguments):
    with pytest.raises(
        SystemExit, match=r"stacks\.py run\|lock \[NAME …\] \[FAILURE …\]; the stacks are december-2025"
    ):
        script("stacks").main(arguments)
