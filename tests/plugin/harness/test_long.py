"""Tests marked long: left out, and said, unless a run asks for them."""

from __future__ import annotations

import pytest

FILE = """
    import pytest

    @pytest.mark.needs("pydantic")
    @pytest.mark.long
    def test_of_minutes():
        pass

    @pytest.mark.needs("pydantic")
    def test_of_seconds():
        pass

    @pytest.mark.long
    def test_of_another_suite():
        pass
"""
SAID = "*1 x marked long: --rl-long runs them*"


@pytest.fixture
def suite(pytester):
    pytester.makepyfile(FILE)
    return pytester


def test_left_out_and_said(suite):
    result = suite.runpytest_subprocess()
    result.assert_outcomes(passed=2, deselected=1)
    result.stdout.fnmatch_lines(["*not run here*", SAID])


@pytest.mark.parametrize("arguments", [["--rl-long"], ["-n", "2", "--rl-long"]])
def test_run_when_asked_for(suite, arguments):
    result = suite.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line(SAID)


def test_the_environment_may_ask_for_them(suite, monkeypatch):
    monkeypatch.setenv("RLREGRESS_LONG", "1")
    suite.runpytest_subprocess().assert_outcomes(passed=3)


def test_left_out_of_xdists_workers_too(suite):
    suite.runpytest_subprocess("-n", "2").assert_outcomes(passed=2)


def test_a_marker_of_that_name_is_known(suite):
    suite.runpytest_subprocess("--strict-markers").assert_outcomes(passed=2, deselected=1)
