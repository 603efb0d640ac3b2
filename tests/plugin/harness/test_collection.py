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
def test_warning_in_a_shipped_scenario_is_not_an_error(folder, outcome):
    """With ``-W error`` the stack's own warnings would be verdicts about it."""
    expected = pytest.warns if outcome == "shown" else pytest.raises
    with warnings.catch_warnings(), expected(DeprecationWarning, match="of the stack"):
        warnings.filterwarnings("error")
        with collection.warnings_shown(folder / "test_it.py"):
            warnings.warn("of the stack", DeprecationWarning, stacklevel=1)


def test_rejects_a_folder_with_spaces(run, mine):
    folder = mine(FAILURES.replace("short-column", "short column"))
    result = run({}, str(folder), here=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*short column/failure.toml: the name of its folder is not that of a failure; allowed: lower-case*"]
    )


@needs.stack
@pytest.mark.parametrize("options", [[], pytest.param(["-n2"], marks=pytest.mark.slow)])
def test_names_a_file_that_imports_the_stack_at_its_top(run, pytester, options):
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


def test_that_ends_its_process_runs_last_in_its_folder(pytester, monkeypatch):
    folder = pytester.mkdir("mine")
    write_failures(folder, ABORTS)
    (folder / "test_ends.py").write_text(ENDS)
    monkeypatch.setenv("RLREGRESS_SCENARIOS", str(folder))
    result = pytester.runpytest_subprocess("-v", "mine")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*::test_remedy HELD*", "*::test_other PASSED*", "*::test_act REPRODUCED*"])
    assert (pytester.path / "remedy").read_text() == (pytester.path / "other").read_text()
