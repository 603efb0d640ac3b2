"""What a check of somebody's record says, and what it can't."""

from __future__ import annotations

import json

import pytest
from histories import cases, make

from pytest_rlregress.cli import main
from pytest_rlregress.failures import tried
from pytest_rlregress.records.checking import check_record, make_digest, tell_check


@pytest.fixture
def write(tmp_path):
    """Write a whole record of a release on an H100, changed before its digest is made, or after."""

    def write(before=None, after=None):
        [path] = make(tmp_path, nights=1, platforms=("h100",), tests=40, traces=False)
        record = json.loads(path.read_text())
        results = record["results"]
        stack = results["extra"]["stack"]
        stack["requirements"] = [
            *(line for line in stack["requirements"] if "rlregress" not in line and "/" not in line),
            "pytest-rlregress==1.2.0",
        ]
        results["extra"]["git"] = None
        if before:
            before(results)
        results["extra"]["digest"] = make_digest(results)
        if after:
            after(results)
        path.write_text(json.dumps(record, indent=3))
        return path

    return write


def answer(path):
    return {question: is_so for question, (is_so, _) in check_record(path).answers.items()}


GOOD = {"whole": True, "unedited": True, "of a release": True}


def test_whole_record_of_a_release_passes_in_any_layout(write):
    found = check_record(write())
    assert answer(write()) == GOOD
    assert (found.exit_code, found.places) == (0, [])
    assert "hardware h100" in found.adds


def edit_word(results):
    results["tests"][0]["extra"]["verdict"] = "crashed"


def edit_version(results):
    results["extra"]["stack"]["requirements"][0] += "1"


def edit_clock(results):
    results["summary"]["stop"] += 1


def remove_test(results):
    results["tests"].pop()


def add_unknown_key(results):
    results["tests"][0]["extra"]["other"] = 1


@pytest.mark.parametrize("edit", [edit_word, edit_version, edit_clock, remove_test, add_unknown_key])
def test_an_edit_is_noticed_and_a_new_digest_hides_it(write, edit):
    assert answer(write(after=edit)) == {**GOOD, "unedited": False}
    assert answer(write(before=edit))["unedited"] is True
    assert "who edits on purpose can make it again" in tell_check(check_record(write()), "it")


def test_an_older_record_is_not_known_to_be_unedited(write):
    found = check_record(write(after=lambda results: results["extra"].pop("digest")))
    assert found.answers["unedited"][0] is None
    assert found.exit_code == 3


@pytest.mark.parametrize(
    "line",
    [
        "pytest-rlregress==1.2.0.dev3",
        "pytest-rlregress==1.2.0+local",
        "pytest-rlregress @ file:///home/me/pytest_rlregress-1.2.0-py3-none-any.whl",
        "pytest-rlregress @ git+https://example.invalid/it@0123",
        "-e /srv/checkout",
        "pytest-rlregress-extra==1.2.0",
    ],
)
def test_a_harness_that_is_no_release_is_refused(write, line):
    def replace(results):
        results["extra"]["stack"]["requirements"][-1] = line

    assert answer(write(replace)) == {**GOOD, "of a release": False}


def test_a_dirty_checkout_and_an_interrupted_run_are_refused(write):
    def change(results):
        results["extra"] |= {"git": {"commit": "0" * 40, "dirty": True}, "state": "interrupted"}

    found = check_record(write(change))
    assert answer(write(change)) == {**GOOD, "whole": False, "of a release": False}
    assert found.exit_code == 1


def test_adds_only_releases_and_failures_that_no_stack_has(write):
    known = dict(tried._read()[0][0])

    def change(results):
        results["extra"]["hardware"]["profile"] = "cpu"
        results["extra"]["stack"]["versions"] = {**known, "vllm": "99.1", "torch": "2.13.0+other", "own": "1"}
        results["tests"][0]["extra"] |= {"failure": "of-my-own", "verdict": "held"}
        results["tests"][1]["extra"] |= {"failure": "unjudged", "verdict": "unavailable"}

    adds = check_record(write(change)).adds
    assert [one for one in adds if "verdict" not in one] == ["vllm 99.1"]
    assert "a verdict on of-my-own, the first of a recorded stack" in adds
    assert not [one for one in adds if "unjudged" in one or "mask-length-drift" in one]
    assert any(tried.has_recorded_verdict(case.failure) for case in cases(40))


def test_places_of_a_machine_are_named(write):
    def change(results):
        results["extra"]["run"]["arguments"] = ["--hw=h100", "/home/ann/tests"]
        results["extra"]["stack"]["requirements"].append("-e /srv/own")
        results["tests"][0]["trace"] = "File /usr/lib/python3/json.py"

    found = check_record(write(change))
    last = len(json.loads(write(change).read_text())["results"]["extra"]["stack"]["requirements"]) - 1
    keys = [f"results.extra.stack.requirements[{last}]", "results.extra.run.arguments[1]"]
    assert sorted(found.places) == sorted(keys)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty, so no record"),
        ('{"results": ', "no complete JSON, so no record"),
        ('{"reportFormat": "CTRF"}', "another tool's test report"),
    ],
)
def test_rejects_what_is_no_record_in_a_sentence(tmp_path, capsys, content, said):
    path = tmp_path / "it.json"
    assert main(["report", "--check", str(path)]) == 2
    assert f"{path}: cannot be read: No such file" in capsys.readouterr().err
    path.write_text(content)
    assert main(["report", "--check", str(path)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_command_answers_in_text_json_and_exit_code(write, capsys):
    path = write()
    assert main(["report", "--check", str(path)]) == 0
    assert "- unedited: yes: " in capsys.readouterr().out
    assert main(["report", "--check", str(write(after=edit_word)), "--json", "-"]) == 1
    assert json.loads(capsys.readouterr().out)["answers"]["unedited"]["answer"] is False
    assert main(["report", "--check", str(path), "--gate"]) == 2
    assert "--check takes one record" in capsys.readouterr().err
