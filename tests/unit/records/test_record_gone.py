"""What the last recorded run had and this one has not is said before the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from record_checks import document

from pytest_rlregress.records.reader import find_last, list_gone

STACK = {"torch": "2.13.0", "vllm": "0.31.0", "verl": "0.9.1"}


def gone(folder, profile, installed):
    return next((list_gone(record, installed) for _, record in find_last(folder, profile)), "")


def write(folder, moment, versions, profile="h100", content=None):
    record = document()
    record["timestamp"] = f"{moment[:4]}-{moment[4:6]}-{moment[6:8]}T02:15:00Z"
    extra = record["results"]["extra"]
    extra["stack"]["versions"] = versions
    extra["hardware"] = {"profile": profile}
    folder.mkdir(exist_ok=True)
    name = f"{moment}T021500Z-{profile or 'unknown'}-3f9a1c.json"
    (folder / name).write_text(json.dumps(record) if content is None else content)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([("20270314", STACK)], "GONE since the last recorded run (2027-03-14): vllm 0.31.0, verl 0.9.1"),
        ([("20270314", {"torch": "2.12.0"})], ""),
        ([("20270314", STACK), ("20270315", {"torch": "2.12.0"})], ""),
        ([("20270314", {"torch": "2.12.0"}), ("20270315", STACK)], "GONE * (2027-03-15): vllm 0.31.0, verl 0.9.1"),
        ([("20270314", STACK, "b200")], ""),
        ([("20270314", STACK, "gb-h100")], ""),
        ([("20270314", STACK, None)], ""),
        ([("20270314", STACK), ("20270315", {}, "b200")], "GONE * (2027-03-14): vllm 0.31.0, verl 0.9.1"),
        ([("20270314", STACK), ("20270315", {}, "h100", "{")], "GONE * (2027-03-14): vllm 0.31.0, verl 0.9.1"),
        ([("20270314", STACK), ("20270315", {}, "h100", "")], "GONE * (2027-03-14): vllm 0.31.0, verl 0.9.1"),
        ([("20270314", STACK, "h100", "{}")], ""),
        ([("20270314", {"of a later release": "1"})], ""),
        ([], ""),
    ],
)
def test_names_components_missing_since_the_last_run(tmp_path, records, said):
    for record in records:
        write(tmp_path / "records", *record)
    assert gone(tmp_path / "records", "h100", ["torch", "ray"]) == said.replace("*", "since the last recorded run")


def test_ignores_a_record_that_is_removed_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / "20270314T000000Z-h100-1.json"])
    assert gone(tmp_path, "h100", []) == ""


def test_compares_runs_on_a_card_without_a_profile(tmp_path):
    write(tmp_path, "20270314", STACK, profile=None)
    assert gone(tmp_path, None, ["torch", "vllm"]).endswith("verl 0.9.1")


@pytest.mark.process
def test_prints_missing_components_in_red_before_the_tests(run, pytester):
    arguments = ("def test_it(): pass", "--rl-record-dir=records", "--color=yes")
    run(*arguments).stdout.no_fnmatch_line("*GONE*")
    [path] = (pytester.path / "records").iterdir()
    record = json.loads(path.read_text())
    record["results"]["extra"]["stack"]["versions"]["apex"] = "0.1"
    path.write_text(json.dumps(record))
    date = record["timestamp"][:10]
    line = f"*\x1b[[]31mGONE since the last recorded run ({date}): apex 0.1*"
    run(*arguments).stdout.fnmatch_lines(["*test session starts*", line, "*collected 1 item*"])
    run(*arguments).stdout.no_fnmatch_line("*GONE*")
