"""What collection says of markers and scenario files that should be mended."""

from __future__ import annotations

import warnings

import needs
import pytest
from made_failures import FAILURES, write_failures

from pytest_rlregress.failures.catalogue import SHIPPED
from pytest_rlregress.harness import collection

SIDES = """
import pytest

@pytest.mark.reproduces("short-column")
def test_act(): assert False, "column 3 is short"

@pytest.mark.guards("short-column")
def test_remedy(): pass
"""
OTHER = FAILURES.replace('id = "short-column"', 'id = "long-column"\nfidelity = "real"')
IN_LOGS = FAILURES.replace("short-column", "known-in-logs")


@pytest.fixture
def mine(pytester, monkeypatch):
    """Write ``mine`` with a test of ``short-column`` and the given entries; returns the folder."""

    def mine(entries):
        folder = pytester.mkdir("mine")
        write_failures(folder, entries)
        (folder / "test_short.py").write_text(SIDES)
        monkeypatch.setenv("RLREGRESS_SCENARIOS", str(folder))
        return folder

    return mine


@pytest.mark.parametrize(("folder", "outcome"), [(SHIPPED / "batch", "shown"), (SHIPPED.parent, "raised")])
def test_a_warning_in_a_shipped_scenario_is_no_error(folder, outcome):
    """With ``-W error`` the stack's own warnings would be verdicts about it."""
    expected = pytest.warns if outcome == "shown" else pytest.raises
    with warnings.catch_warnings(), expected(DeprecationWarning, match="of the stack"):
        warnings.filterwarnings("error")
        with collection.warnings_shown(folder / "test_it.py"):
            warnings.warn("of the stack", DeprecationWarning, stacklevel=1)


def test_folder_with_spaces_is_refused(run, mine):
    folder = mine(FAILURES.replace("short-column", "short column"))
    result = run({}, str(folder), here=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*short column/failure.toml: the name of its folder is not that of a failure; allowed: lower-case*"]
    )


@pytest.mark.parametrize("options", [["-n1"], ["-k", "act"]])
def test_failure_without_tests(run, mine, options):
    folder = mine(FAILURES + OTHER + IN_LOGS)
    result = run({}, str(folder), "-p", "no:cacheprovider", *options)
    assert result.ret == pytest.ExitCode.OK
    said = f"failure long-column has no test: none in {folder / 'long_column'} is marked"
    assert result.stdout.str().count(said) == 1
    assert result.stdout.str().count("has no test") == 1  # what says nothing of tests is known by its lines in logs


def test_failure_without_tests_is_an_error_where_warnings_are(run, mine):
    folder = mine(FAILURES + OTHER)
    result = run({}, str(folder), "-W", "error::pytest.PytestWarning", here=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*failure long-column has no test*"])


def test_part_of_a_folder_says_nothing_of_the_rest(run, mine):
    folder = mine(FAILURES + OTHER)
    test = folder / "long_column" / "test_long.py"
    test.write_text(SIDES.replace("short-column", "long-column"))
    for arguments in ([folder / "test_short.py"], [folder, "--ignore", test]):
        result = run({}, "--collect-only", *map(str, arguments), here=True)
        assert result.ret == pytest.ExitCode.OK
        assert "has no test" not in result.stdout.str()


@needs.stack
@pytest.mark.parametrize("options", [[], pytest.param(["-n2"], marks=pytest.mark.slow)])
def test_file_that_imports_the_stack_at_its_top(run, pytester, options):
    pytester.makepyfile(helper="import ray")
    marked = "import pytest\n@pytest.mark.needs('pydantic')\ndef test_it():"
    files = {
        "test_at_its_top": f"import helper\n{marked} pass\n",
        "test_inside": f"{marked}\n    import transformers\n",
        "test_none_of_ours": "import transformers\ndef test_it(): pass\n",
    }
    result = run(files, *options)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*ScenarioWarning: test_at_its_top.py imports ray at its top, or what it imports *"])
    assert result.stdout.str().count("at its top, or") == 1


ENDS = """
import os
from pathlib import Path

import pytest

@pytest.mark.reproduces("it-aborts")
def test_act(): os.abort()

@pytest.mark.guards("it-aborts")
def test_remedy(): Path("remedy").write_text(str(os.getpid()))

@pytest.mark.needs("pydantic")
def test_other(): Path("other").write_text(str(os.getpid()))
"""
ABORTS = """
id = "it-aborts"
title = "t"
seen_on = "any"
components = { pydantic = "any" }
cause = "c"
remedy = "r"

[[signature]]
signal = "SIGABRT"
"""


def test_what_ends_the_process_of_a_folder_comes_last(pytester, monkeypatch):
    folder = pytester.mkdir("mine")
    write_failures(folder, ABORTS)
    (folder / "test_ends.py").write_text(ENDS)
    monkeypatch.setenv("RLREGRESS_SCENARIOS", str(folder))
    result = pytester.runpytest_subprocess("-v", "mine")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*::test_remedy HELD*", "*::test_other PASSED*", "*::test_act REPRODUCED*"])
    assert (pytester.path / "remedy").read_text() == (pytester.path / "other").read_text()
