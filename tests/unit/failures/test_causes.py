"""One cause is told once, whatever tests saw it, and is the same on another night."""

from __future__ import annotations

import pytest

from pytest_rlregress.failures.causes import BadTest, SharedCause, find_cause, find_shared
from pytest_rlregress.failures.verdicts import Outcome

PACKAGES = "/venv/lib/python3.11/site-packages"
IMPORT = "ImportError: cannot import name 'X' from 'transformers' (in verl/utils/model.py:<module>)"
KEY = "KeyError: 'attention_mask' (in tensordict/_td.py:get)"


def failed(error, message, *frames):
    return Outcome("failed", exceptions=(f"builtins.{error}", "builtins.Exception"), message=message, frames=frames)


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (
            failed(
                "ImportError",
                "cannot import name 'X' from 'transformers'\nmore",
                "/home/me/scenarios/batch/test_x.py:test_it",
                f"{PACKAGES}/verl/utils/model.py:<module>",
            ),
            IMPORT,
        ),
        (
            failed(
                "OSError", "no room at 0x7f80710ddc90 in /tmp/run-1/x", f"{PACKAGES}/vllm/a.py:f", "/usr/lib/os.py:g"
            ),
            "OSError: no room at # in … (in vllm/a.py:f)",
        ),
        (failed("KeyError", "", f"{PACKAGES}/tensordict/_td.py:get"), "KeyError (in tensordict/_td.py:get)"),
        (failed("AssertionError", "assert 1 == 2", "/home/me/scenarios/batch/test_x.py:test_it"), ""),
        (failed("ValueError", "x", f"{PACKAGES}/pytest_rlregress/scenarios/x.py:f", f"{PACKAGES}/_pytest/y.py:g"), ""),
        (Outcome("crashed", message="died of SIGSEGV", frames=(f"{PACKAGES}/torch/x.py:f",)), ""),
        (Outcome("passed"), ""),
    ],
)
def test_cause_is_the_exception_and_its_place_in_a_package(outcome, cause):
    assert find_cause(outcome) == cause


def bad(failure, side, cause=KEY):
    return BadTest(f"{failure} {side}", failure, side, cause)


@pytest.mark.parametrize(
    ("tests", "word"),
    [
        ([bad("a", "guards"), bad("b", "guards")], ""),
        ([bad("a", "guards"), bad("a", "reproduces")], "unavailable"),
        ([bad("a", "guards"), bad("a", "reproduces"), bad("b", "reproduces")], ""),
        (
            [bad("a", side) for side in ("guards", "reproduces")] + [bad("b", s) for s in ("guards", "reproduces")],
            "unavailable",
        ),
        ([bad("a", "guards", IMPORT), bad("b", "reproduces", IMPORT)], "blocked"),
    ],
)
def test_shared_cause_is_one_finding(tests, word):
    assert find_shared(tests) == [SharedCause(tests[0].cause, word, tuple(tests))]


@pytest.mark.parametrize(
    "tests",
    [
        [],
        [bad("a", "guards")],
        [bad("a", "guards"), bad("a", "guards")],
        [bad("a", "guards", ""), bad("b", "guards", "")],
        [bad("a", "guards"), bad("b", "guards", IMPORT)],
    ],
)
def test_cause_of_one_side_is_told_by_its_failure(tests):
    assert find_shared(tests) == []
