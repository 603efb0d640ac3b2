"""Weak signatures, which other programs produce too: an answer with a clue, and else what could be one."""

from __future__ import annotations

import json

import pytest
from made_failures import write_failures

from pytest_rlregress.cli import main
from pytest_rlregress.diagnosis import reader
from pytest_rlregress.diagnosis.findings import name_test
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.verdicts import Outcome, bears, judge

CATALOGUE = """
id = "engine-and-trainer"
title = "Engine and trainer share a card"
seen_on = "any"
components = {}
cause = "both want it whole"
remedy = "give each a part"
[[signature]]
says = ["MemoryFull: card is full"]
with = ["engine/core.py", "Engine version {number}"]
confirm = "an engine on the same card"

id = "long-batch"
title = "The batch is too long"
seen_on = "any"
components = {}
cause = "it is"
remedy = "cut it"
[[signature]]
says = ["MemoryFull: card is full"]
with = ["max_batch={number}"]
confirm = "a batch of 1000 and more in the settings"

id = "card-lost"
title = "The card is lost"
seen_on = "any"
components = {}
cause = "it is"
remedy = "reset it"
[[signature]]
says = ["card is full of errors"]
"""
EVENT = """\
Traceback (most recent call last):
  File "/opt/train.py", line 12, in step
    model(batch)
MemoryFull: card is full
"""
EVENT_OF_ENGINE = EVENT.replace("/opt/train.py", "/opt/engine/core.py")
ENGINE = "INFO: Engine version 3"
LONG = "settings: max_batch=4096"


@pytest.fixture
def ask(tmp_path, capsys):
    write_failures(tmp_path, CATALOGUE)

    def run(*logs):
        paths = [tmp_path / f"{number}.log" for number in range(len(logs))]
        for path, text in zip(paths, logs, strict=True):
            path.write_text(text)
        code = main(["diagnose", "--json", "--scenarios", str(tmp_path), *map(str, paths)])
        found = json.loads(capsys.readouterr().out)
        assert found["unknown"] == []
        assert {one["confidence"] for one in found["documented"]} <= {"certain"}
        assert {one["confidence"] for one in found["possible"]} <= {"possible"}
        return code, [one["id"] for one in found["documented"]], [one["id"] for one in found["possible"]]

    return run


FILLER = "an ordinary line\n" * 200


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([EVENT], (3, [], ["engine-and-trainer", "long-batch"])),
        ([EVENT_OF_ENGINE], (1, ["engine-and-trainer"], [])),
        ([f"{ENGINE}\n{FILLER}{EVENT}"], (1, ["engine-and-trainer"], [])),
        ([f"{EVENT}{FILLER}{LONG}"], (1, ["long-batch"], [])),
        ([EVENT, f"{FILLER}{ENGINE}\n"], (1, ["engine-and-trainer"], [])),
        ([f"{ENGINE}\n{LONG}\n{EVENT}"], (1, ["engine-and-trainer", "long-batch"], [])),
        # Only in part, on another line, and an engine without the failure.
        ([f"INFO: Engine version\n3 {EVENT} max_batch=all"], (3, [], ["engine-and-trainer", "long-batch"])),
        ([ENGINE], (0, [], [])),
        # An answer for one event leaves the other as it is, unless one led to the other.
        ([f"card is full of errors\n{FILLER}{EVENT}"], (1, ["card-lost"], ["engine-and-trainer", "long-batch"])),
        (
            [
                f"{EVENT}\nThe above exception was the direct cause of the following exception:\n\n"
                + EVENT.replace("MemoryFull: card is full", "DeviceError: card is full of errors")
            ],
            (1, ["card-lost"], []),
        ),
    ],
    ids=["alone", "frame", "before", "after", "other log", "both clues", "in part", "clue alone", "answer", "chain"],
)
def test_clue_confirms_a_weak_signature(ask, logs, expected):
    assert ask(*logs) == expected


def test_clue_is_found_across_blocks(ask, monkeypatch):
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 64)
    for before in range(0, 128, 9):
        assert ask("x" * before + f"\n{EVENT}{FILLER}{ENGINE}\n{FILLER}")[:2] == (1, ["engine-and-trainer"])


def test_clue_in_a_long_log_is_found_at_its_begin_and_near_events(ask, monkeypatch):
    monkeypatch.setattr(reader, "_BYTES_FOR_CLUES", 8192)
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 4096)
    for text, code in [
        (f"{ENGINE}\n{FILLER * 9}{EVENT}", 1),
        (f"{FILLER * 9}{ENGINE}\n{EVENT}", 1),
        (f"{FILLER * 9}{ENGINE}\n{FILLER * 9}{EVENT}", 3),
    ]:
        assert ask(text)[0] == code


def test_text_says_what_would_confirm_it(tmp_path, capsys):
    write_failures(tmp_path, CATALOGUE)
    log = tmp_path / "run.log"
    log.write_text(f"{EVENT}{FILLER}card is full of errors\n{FILLER}ValueError: unheard of\n")
    assert main(["diagnose", "--scenarios", str(tmp_path), str(log)]) == 1
    printed = capsys.readouterr().out
    order = [
        "card-lost: The card is lost",
        "Could be engine-and-trainer: Engine and trainer share a card",
        "  would confirm it: an engine on the same card",
        "Could be long-batch: ",
        "Seen, and not documented:",
        "1 documented failure, 2 that could be one",
    ]
    assert sorted(order, key=printed.index) == order


def test_tests_are_judged_without_the_clue_and_named_with_it(tmp_path):
    write_failures(tmp_path, CATALOGUE)
    known = catalogue.load([tmp_path])
    outcome = Outcome("failed", exceptions=("lab.MemoryFull",), message="card is full")
    assert bears(outcome, known["engine-and-trainer"])
    assert name_test(outcome, known.values()) == []
    named = name_test(
        Outcome("failed", exceptions=("lab.MemoryFull",), message="card is full", log=ENGINE), known.values()
    )
    assert [failure.id for failure in named] == ["engine-and-trainer"]


def test_without_clues_it_could_be_and_judges_no_test(tmp_path, capsys):
    """A signature with ``confirm`` alone: one of two that a failure has, which an answer for the event hides."""
    hint = '\n  [[signature]]\n  says = ["card is {warm|full of errors}"]\n  confirm = "a hand on it"\n'
    first, rest = CATALOGUE.split('\nid = "long-batch"', 1)
    write_failures(tmp_path, f'{first}{hint}\nid = "long-batch"{rest}')
    log = tmp_path / "run.log"

    def told(text):
        log.write_text(text)
        code = main(["diagnose", "--json", "--scenarios", str(tmp_path), str(log)])
        found = json.loads(capsys.readouterr().out)
        return code, [one["id"] for one in found["documented"]], [one["confirm"] for one in found["possible"]]

    assert told("RuntimeError: card is warm\n") == (3, [], [["a hand on it"]])
    assert told(f"{ENGINE}\nRuntimeError: card is warm\n") == (3, [], [["a hand on it"]])
    assert told("RuntimeError: card is full of errors\n") == (1, ["card-lost"], [])

    failure = catalogue.load([tmp_path])["engine-and-trainer"]
    warm = Outcome("failed", exceptions=("RuntimeError",), message="card is warm")
    assert not bears(warm, failure)
    judged = judge("reproduces", warm, failure)
    assert (judged.verdict, judged.note) == ("changed", "no documented signature: RuntimeError: card is warm")
    assert name_test(warm, [failure]) == []
