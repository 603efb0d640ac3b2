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


def make_bad(failure, untried=""):
    extra = HarnessProperties(failure=failure, side="guards", verdict="regressed", note="no", untried=untried)
    return RecordedTest(f"{failure}::test_it", "failed", "failed", 1, failure, extra)


def test_failures_that_were_not_tried_with_these_releases_come_last_and_say_so_once():
    untried = "not tried with verl 0.4.1 (tried: 0.6.1 to 0.9.1)"
    tests = [make_bad("a", untried), make_bad("b"), make_bad("c", untried)]
    [said, *_] = answer.summarise(tests, "cpu")
    bad = "1 of 1 guard regressed"
    assert said == f"FAILED on cpu: b: {bad}; {untried}: a: {bad}; c: {bad}."
