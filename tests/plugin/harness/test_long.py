"""Tests that a run leaves out, and says so: those marked long unless it asks for them, most in a quick run."""

from __future__ import annotations

import textwrap

import pytest
from made_failures import write_failures

from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.records.history import open_history
from pytest_rlregress.records.stories import make_rerun

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


def test_leaves_out_long_tests_and_says_so(run):
    result = run(FILE, "--strict-markers", "-n2", "--hw=cpu", "test_it.py")
    assert result.parseoutcomes()["passed"] == 2
    result.stdout.fnmatch_lines(["OK on cpu: 2 tests passed.", SAID])


def test_counts_only_selected_long_tests(run):
    result = run(FILE, "-k", "seconds")
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.no_fnmatch_line(SAID)


def test_runs_long_tests_with_the_option(run):
    result = run(FILE, "--rl-long")
    result.assert_outcomes(passed=3)
    result.stdout.no_fnmatch_line(SAID)


SIDES = """
    import pytest

    @pytest.mark.isolated
    @pytest.mark.reproduces("ours")
    def test_act_of_its_own_process():
        raise ValueError("ours")

    @pytest.mark.reproduces("ours")
    @pytest.mark.parametrize("number", range(3))
    def test_act(number):
        raise ValueError("ours")

    @pytest.mark.guards("ours")
    def test_remedy_in_an_engine(vllm_engine):
        pass

    @pytest.mark.guards("ours")
    @pytest.mark.parametrize("number", range(3))
    def test_remedy(number):
        pass

    @pytest.mark.guards("engines-only")
    def test_engine(vllm_engine):
        pass

    @pytest.mark.isolated
    def test_of_no_failure():
        pass

    def test_of_another_suite():
        pass
"""
FAILURE = """
    id = "{}"
    title = "t"
    seen_on = "any"
    components = {{ pydantic = "any" }}
    cause = "c"
    remedy = "r"

      [[signature]]
      says = ["ours"]
"""
QUICK = "quick run (--rl-quick): one reproduces and one guard of each failure*"


@pytest.fixture
def sides(pytester, run):
    folder = pytester.mkdir("mine")
    write_failures(folder, textwrap.dedent("".join(map(FAILURE.format, ["ours", "engines-only"]))))
    (folder / "test_it.py").write_text(textwrap.dedent(SIDES))
    fixed = f"--override-ini=rlregress_scenarios={folder}", "--hw=cpu", "-v", "mine"
    return lambda *arguments: run({}, *fixed, *arguments, here="--collect-only" in arguments)


def test_quick_run_has_one_test_per_side_without_an_engine(sides):
    result = sides("--rl-quick")
    assert result.parseoutcomes()["passed"] == 3
    for test in ("test_act?0?", "test_remedy?0?", "test_of_another_suite"):
        result.stdout.fnmatch_lines([f"*mine/test_it.py::{test}*"])
    result.stdout.fnmatch_lines(["OK on cpu: *", QUICK])


def test_quick_runs_are_recorded_as_their_own_platform(sides, pytester, monkeypatch):
    monkeypatch.setenv("RLREGRESS_QUICK", "1")
    sides("--rl-record-dir=records")
    [run] = open_history([pytester.path / "records"]).runs
    assert (run.platform, run.call.selection) == ("cpu, quick", ["--rl-quick", "mine"])
    assert "--rl-quick" in make_rerun(run, ["mine/test_it.py::test_act[0]"])
    assert "--hw=cpu" in make_rerun(run, ["mine/test_it.py::test_act[0]"])


def test_option_for_long_tests_overrides_quick(sides):
    result = sides("--rl-quick", "--rl-long", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*test_act?2?*"])
    result.stdout.no_fnmatch_line(QUICK)


@pytest.mark.parametrize(
    ("chosen", "tests"),
    [
        (["--rl-failure=engines-only"], {"test_engine"}),
        (
            ["--rl-failure=engines-only", "--rl-failure=mine/ours", "--rl-component=vllm"],
            {"test_engine", "test_remedy_in_an_engine"},
        ),
        (["--rl-component=vllm"], {"test_engine", "test_remedy_in_an_engine"}),
    ],
)
def test_runs_the_tests_of_a_failure_or_component(sides, chosen, tests):
    result = sides("--collect-only", "-qq", "--verbosity=-1", *chosen)
    assert {line.partition("::")[2] for line in result.outlines if "::" in line} == tests


def test_collects_the_folders_of_the_failures_alone(pytester):
    result = pytester.runpytest_inprocess("--rl-failure=double-bos,pad-is-eos", "--collect-only", "-qq")
    files = {line.partition(": ")[0].rpartition("/")[2] for line in result.outlines if ".py: " in line}
    folders = [SHIPPED / name for name in ("sampling/double_bos", "tokens/pad_is_eos")]
    assert files == {file.name for folder in folders for file in folder.glob("test_*.py")}


def test_refuses_an_unknown_failure(pytester):
    result = pytester.runpytest_inprocess("--rl-failure", "mask-length-drfit")
    words = "failure id 'mask-length-drfit' * Did you mean mask-length-drift"
    result.stderr.fnmatch_lines([f"*--rl-failure: {words}*"])


def test_refuses_a_failure_without_tests(pytester):
    folder = pytester.mkdir("lab")
    write_failures(folder, textwrap.dedent(FAILURE.format("untested")))
    result = pytester.runpytest_inprocess(f"--override-ini=rlregress_scenarios={folder}", "--rl-failure=untested")
    words = f"untested has no tests in {folder / 'untested'}. Write a test of each side there"
    result.stderr.fnmatch_lines([f"*--rl-failure: {words}*"])
