"""The first line on a night and its colour: what the page, Markdown, JSON and the terminal begin with."""

from __future__ import annotations

import json

import pytest
from histories import LAST, Event, cases, make

from pytest_rlregress.commands.report.json_document import as_json
from pytest_rlregress.records.history import open_history
from pytest_rlregress.records.night import Night, compare, judge_night
from pytest_rlregress.records.night_text import tell

GUARDS = [case.name for case in cases(30) if case.side == "guards" and case.word == "held"]
ALL = [case.name for case in cases(12)]
RAN = [case.name for case in cases(12) if case.word != "unavailable"]


def opened(folder, *, events=(), nights=2, tests=12, platforms=("cpu",), expect=()):
    make(folder, nights=nights, platforms=platforms, tests=tests, events=events, traces=False)
    return judge_night(open_history([folder]), expect=expect)


def told(night):
    """A night's headline and its colour."""
    return night.headline, night.colour


FAILS = Event("bad", 0, GUARDS[0])
NO_MORE = "Nothing to compare with yet."
FIRST = [
    ([], f"First run: all 12 tests pass. {NO_MORE}", "green"),
    (
        [Event("bad", 0, name, "unavailable") for name in ALL[:2]],
        f"First run: none of 12 tests fails, 2 did not run. {NO_MORE}",
        "green",
    ),
    ([Event("bad", 0, name, "unavailable") for name in ALL], f"First run: no test ran. {NO_MORE}", "amber"),
    ([Event("bad", 0, name, "absent") for name in ALL], f"First run: all 12 tests pass. {NO_MORE}", "green"),
    ([Event("bad", 0, name, "reproduced") for name in ALL], f"First run: all 12 tests pass. {NO_MORE}", "green"),
    ([FAILS], f"First run: 1 of 12 tests fails. {NO_MORE}", "amber"),
    ([FAILS, Event("bad", 0, GUARDS[1], "hung")], f"First run: 2 of 12 tests fail. {NO_MORE}", "amber"),
    ([FAILS, Event("again", 0)], f"First 2 runs: 1 of 12 tests fails. {NO_MORE}", "amber"),
    (
        [Event("flake", 0, GUARDS[0])],
        f"1 flake on cpu; first 2 runs: 1 of 12 tests fails. {NO_MORE}",
        "amber",
    ),
    (
        [Event("interrupted", 0), FAILS],
        f"First run: 1 of 12 tests fails; not every run on cpu was complete. {NO_MORE}",
        "amber",
    ),
]
LATER = [
    ([], (), "Nothing got worse on cpu.", "green"),
    ([FAILS], (), "Nothing got worse on cpu; 1 test fails as before.", "amber"),
    (
        [FAILS, Event("bad", 0, GUARDS[1], "crashed")],
        (),
        "Nothing got worse on cpu; 2 tests fail as before.",
        "amber",
    ),
    ([Event("bad", 0, GUARDS[0], until=1)], (), "Nothing got worse on cpu; 1 test repaired on cpu.", "green"),
    ([Event("gone", 0, GUARDS[0], until=1)], (), "Nothing got worse on cpu.", "green"),
    (
        [Event("gone", 0, GUARDS[0], until=1), Event("bad", 1, GUARDS[0])],
        (),
        "Nothing got worse on cpu; 1 new test fails on cpu.",
        "amber",
    ),
    (
        [Event("bad", 1, GUARDS[0], "unavailable"), Event("bad", 1, GUARDS[1], "blocked")],
        (),
        "Nothing got worse on cpu; 2 tests lost on cpu.",
        "amber",
    ),
    ([Event("bad", 0, GUARDS[0], "blocked", until=1)], (), "Nothing got worse on cpu.", "green"),
    ([Event("gone", 1, GUARDS[0])], (), "Nothing got worse on cpu; 1 test lost on cpu.", "amber"),
    (
        [Event("bad", 1, name, "unavailable") for name in ALL],
        (),
        f"{len(RAN)} tests lost on cpu; no test ran on cpu.",
        "amber",
    ),
    ([Event("bad", 0, name, "unavailable") for name in ALL], (), "No test ran on cpu.", "amber"),
    ([], ("cpu", "h100"), "Nothing got worse on cpu; h100 did not run.", "amber"),
    ([FAILS], ("h100",), "Nothing got worse on cpu; 1 test fails as before on cpu; h100 did not run.", "amber"),
    ([Event("killed", 1)], (), "not every run on cpu was complete.", "amber"),
    (
        [Event("bad", 1, GUARDS[0], "hung")],
        (),
        "1 test worse in one run (unconfirmed) on cpu since 2026-11-20.",
        "amber",
    ),
    (
        [Event("bad", 1, GUARDS[0]), Event("bad", 1, GUARDS[1]), Event("again", 1)],
        (),
        "2 regressions on cpu since 2026-11-20.",
        "red",
    ),
]


@pytest.mark.parametrize(("events", "text", "colour"), FIRST)
def test_first_night_has_a_headline(tmp_path, events, text, colour):
    tonight = opened(tmp_path, nights=1, events=events)
    assert told(tonight) == (text, colour)
    assert not any(change.trips for change in tonight.changes)
    assert "known" not in {change.kind for change in tonight.platforms[0].changes}


@pytest.mark.parametrize(("events", "expect", "text", "colour"), LATER)
def test_later_night_has_a_headline(tmp_path, events, expect, text, colour):
    found, found_colour = told(opened(tmp_path, events=events, expect=expect))
    assert found.endswith(text)
    assert found_colour == colour


def test_headline_names_a_platform_on_its_first_night(tmp_path):
    events = [Event("no run", 0, platform="h100"), Event("bad", 1, GUARDS[0], platform="h100")]
    tonight = opened(tmp_path, platforms=("cpu", "h100"), events=events)
    text = "Nothing got worse on cpu; first run on h100: 1 of 12 tests fails."
    assert told(tonight) == (text, "amber")
    tonight = opened(
        tmp_path / "two", nights=1, platforms=("cpu", "h100"), events=[Event("bad", 0, GUARDS[0], platform="h100")]
    )
    text = "First run on cpu: all 12 tests pass; first run on h100: 1 of 12 tests fails. "
    assert told(tonight) == (text + NO_MORE, "amber")


def test_interrupted_run_is_not_green_beside_a_complete_one(tmp_path):
    _, first, _ = make(tmp_path, nights=2, platforms=("cpu",), tests=12, events=[Event("again", 1)], traces=False)
    record = json.loads(first.read_text())
    record["results"]["extra"]["state"] = "interrupted"
    first.write_text(json.dumps(record))
    tonight = judge_night(open_history([tmp_path]))
    text = "Nothing got worse on cpu; not every run on cpu was complete."
    assert told(tonight) == (text, "amber")


@pytest.mark.parametrize("platforms", [(), ("h100",)])
def test_night_without_a_run_has_a_headline(tmp_path, platforms):
    history = open_history([tmp_path])
    tonight = judge_night(history, LAST, platforms) if platforms else Night(LAST, (), (), ())
    assert told(tonight) == ("Nothing ran this night.", "amber")


@pytest.mark.parametrize("nights", [1, 2])
def test_every_summary_begins_with_the_headline(tmp_path, nights):
    tonight = opened(tmp_path, nights=nights, events=[FAILS])
    headline, _ = told(tonight)
    assert tell(tonight).partition("\n")[0] == f"## Night of 2026-11-20 (times are UTC): {headline}"
    whole = as_json(tonight)
    assert (whole["summary"], whole["colour"], whole["trips"]) == (headline, "amber", False)


@pytest.mark.parametrize(
    ("events", "headline"),
    [
        ([FAILS], "nothing got worse, 1 test fails as before"),
        ([Event("gone", 0, GUARDS[0], until=1), Event("bad", 1, GUARDS[0])], "1 new test fails"),
        ([Event("bad", 1, GUARDS[0], "unavailable"), Event("bad", 1, GUARDS[1], "blocked")], "2 tests lost"),
        ([Event("bad", 0, GUARDS[0], "unavailable", until=1)], "nothing got worse"),
    ],
)
def test_comparison_has_a_headline(tmp_path, events, headline):
    before, after = make(tmp_path, nights=2, platforms=("cpu",), tests=12, events=events, traces=False)
    found = compare(open_history([before, after]), before, [after])
    assert (found.headline, any(change.trips for change in found.changes)) == (headline, False)
