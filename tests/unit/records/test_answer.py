"""A run's answer: how its tests are counted."""

from __future__ import annotations

from pytest_rlregress.records import answer
from pytest_rlregress.records.record_types import HarnessProperties, RecordedTest


def make_test(file, failure=""):
    extra = HarnessProperties(failure=failure, verdict="held" if failure else "")
    return RecordedTest(f"{file}::test_it", "passed", "passed", 1, file, extra)


def test_area_is_the_parent_folder_of_a_failure():
    tests = [
        make_test("batch/mask_length_drift/test_x.py", "mask-length-drift"),
        make_test("lab/scenarios/rewards/reward_zero/test_x.py", "reward-zero"),
        make_test("tests/unit/test_x.py"),
    ]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in answer.details(tests)["by area"][2:]]
    assert rows == [["batch", "1", ""], ["rewards", "1", ""], ["tests", "", "1"]]


def make_bad(failure, untried="", cause="", side="guards"):
    verdict = {"guards": "regressed", "reproduces": "changed"}[side]
    extra = HarnessProperties(failure=failure, side=side, verdict=verdict, note="no", untried=untried, cause=cause)
    return RecordedTest(f"{failure}::test_{side}", "failed", "failed", 1, failure, extra)


def test_failures_that_were_not_tried_with_these_releases_come_last_and_say_so_once():
    untried = "not tried with verl 0.4.1 (tried: 0.6.1 to 0.9.1)"
    tests = [make_bad("a", untried), make_bad("b"), make_bad("c", untried)]
    [said, *_] = answer.summarise(tests, "cpu")
    bad = "1 of 1 guard regressed"
    assert said == f"FAILED on cpu: b: {bad}; {untried}: a: {bad}; c: {bad}."


def test_tests_of_one_cause_are_one_finding():
    missing = "ImportError: cannot import name 'X' from 'transformers' (in verl/utils/model.py:<module>)"
    tests = [make_bad(failure, "", missing, side) for failure in "abc" for side in ("reproduces", "guards")]
    one, other = answer.find([*tests, make_bad("d")])
    assert (one.word, one.name, len(one.tests), one.fails) == ("blocked", missing, 6, True)
    assert (other.word, other.name) == ("regressed", "d")
    [said, *_] = answer.summarise([*tests, make_bad("d")], "cpu")
    first = f"FAILED on cpu: 6 tests of 3 failures blocked by one cause, `{missing}`"
    assert said == f"{first}; d: 1 of 1 guard regressed."
    assert answer.details(tests)["not as expected"][-1].endswith("blocked: a, b, c")


def test_one_exception_on_both_sides_of_a_failure_is_told_once_as_unavailable():
    refused = "AssertionError: tokenizer or processor must be provided (in verl/utils/checkpoint.py:__init__)"
    [one] = answer.find([make_bad("a", "", refused, side) for side in ("reproduces", "guards")])
    assert (one.word, one.name, one.counted) == ("unavailable", refused, "2 tests of 1 failure")


def test_release_that_cannot_be_driven_is_what_was_wanting():
    extra = HarnessProperties(failure="a", side="guards", verdict="unavailable", note="")
    reason = "verl 0.7.1 can't be driven this way: ConfigAttributeError: Missing key model"
    tests = [RecordedTest(f"x::{n}", "skipped", "skipped", 1, "x", extra, message=reason) for n in range(2)]
    assert answer.summarise(tests, "cpu")[1] == "Not tried, 2 tests, for want of: a way to drive verl 0.7.1 (2)."
