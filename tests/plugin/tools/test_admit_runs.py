"""Admission for real: a scenario that flips, one that doesn't, a time that is over, and what can't be run."""

from __future__ import annotations

import json

import pytest
from made_failures import FAILURES, write_failures

ENTRY = FAILURES.partition("\n[[signature]]\nsignal")[0]
TEST = """
import pytest

CALLS, STARTS = [], []

@pytest.fixture(scope="session")
def engine():
    STARTS.append("started")
    return STARTS

@pytest.mark.reproduces("short-column")
def test_column():
    raise AssertionError("column 3 is short")

@pytest.mark.guards("short-column")
@pytest.mark.isolated(group="columns", timeout=500)
@pytest.mark.parametrize("kind", ["a", "b"])
def test_long_column(kind, engine):
    CALLS.append(kind)
    {body}
"""
# The state of one process: a fresh run never sees it.
FLIPS = "assert CALLS.count('b') < 2, 'the column was used before'"


@pytest.fixture
def admit(script, tmp_path, monkeypatch):
    """The tool, its runs in a folder of the test, and the failure's folder as the only one of the user's."""
    monkeypatch.setenv("RLREGRESS_SCENARIOS", str(tmp_path))
    monkeypatch.setenv("RLREGRESS_HW", "cpu")
    module = script("admit")
    monkeypatch.setattr(module, "RUNS", tmp_path / ".admit")
    return module


@pytest.fixture
def write(tmp_path):
    """``write(body)``: the failure, whose guard has this body."""

    def write(body):
        write_failures(tmp_path, ENTRY)
        (tmp_path / "short_column" / "test_short_column.py").write_text(TEST.format(body=body))

    return write


def test_refuses_a_scenario_that_flips_within_one_process(admit, write, capsys):
    write(FLIPS)
    assert admit.main(["short-column", "--repeats", "3", "--fresh", "1"]) == 1
    *_, line = capsys.readouterr().out.splitlines()
    assert "test_long_column[b]: held in 2 of 4, but regressed in repeat 2 of one group, " in line
    assert line.endswith("regressed in repeat 3 of one group: AssertionError: the column was used before")


@pytest.mark.slow
def test_admits_a_scenario_that_always_says_the_same(admit, write, capsys):
    write("assert len(engine) == 1, 'the repeats do not share what lasts for a session'")
    assert admit.main(["short-column", "--repeats", "2", "--fresh", "2"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line == "admitted: 3 tests (1 reproduced, 2 held) said the same 4 times."
    limits = json.loads((admit.RUNS / "limits.json").read_text())
    assert {name.rpartition("::")[2]: seconds for name, seconds in limits.items()} == {
        "test_column": 600, "test_long_column[a]": 500, "test_long_column[b]": 500
    }  # fmt: skip


@pytest.mark.slow
def test_says_what_it_did_not_get_to(admit, write, capsys):
    write("import time; time.sleep(3600)")
    assert admit.main(["short-column", "--within", "25"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith("nothing was admitted: no test gave a verdict twice")
    assert "not reached in time: " in line
    assert "fresh run 5" in line


def test_an_unknown_failure_is_an_error(admit, write, capsys):
    write("pass")
    assert admit.main(["short-colum"]) == 2
    assert "fresh run 1: pytest ended with exit code 4: " in capsys.readouterr().err
