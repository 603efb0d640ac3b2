"""A command behind ``--`` is a test: its rehearsal's exit code is how it ends."""

from __future__ import annotations

import json
import subprocess

import pytest

from pytest_rlregress.environments import RequestError
from pytest_rlregress.trials import rehearsal

COMMAND = ["python", "train.py", "--config=grpo.yaml"]
FINDING = {"check": "advantages", "why": "step 1: 0.5 where the rewards make 1"}


@pytest.fixture
def rehearsed(pytester, monkeypatch):
    """Run the test of ``COMMAND``, whose rehearsal ends so: ``rehearsed(exit_code, **what_it_says)``."""

    def rehearsed(code, **said):
        asked = []

        def run(command, **options):
            asked.append(command)
            printed = json.dumps({"sentence": "it is so", "findings": [], "ended": [], **said}) if said else ""
            return subprocess.CompletedProcess(command, code, printed)

        monkeypatch.setattr(rehearsal.subprocess, "run", run)
        result = pytester.runpytest_inprocess(
            "-n0", "-rs", rehearsal.write_test(COMMAND, pytester.path), "-p", "no:rlregress"
        )
        [[program, *words]] = asked
        assert program.endswith("/rlregress")
        assert words == ["rehearse", "--json", "--", *COMMAND]
        return result

    return rehearsed


ENDS = {
    "sound": (0, {"sentence": "sound"}, "passed", ""),
    "findings": (1, {"findings": [FINDING]}, "failed", "advantages: step 1: 0.5 where the rewards make 1"),
    "not-begun": (2, {"ended": ["the command ended before it trained"]}, "failed", "*ended before it trained"),
    "in-part": (3, {"sentence": "sync was not checked"}, "skipped", "*sync was not checked"),
    "silent": (2, {}, "failed", "*said nothing, and ended with exit code 2"),
}


@pytest.mark.parametrize("end", ENDS)
def test_ends_as_the_rehearsal_does(rehearsed, end):
    code, said, outcome, line = ENDS[end]
    result = rehearsed(code, **said)
    result.assert_outcomes(**{outcome: 1})
    if line:
        result.stdout.fnmatch_lines([f"*{line}*"])


def test_is_another_one_where_a_file_of_the_command_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.yaml").write_text("beta: 0.0")
    before = rehearsal.write_test(COMMAND, tmp_path).read_text()
    assert rehearsal.write_test(COMMAND, tmp_path).read_text() == before
    (tmp_path / "grpo.yaml").write_text("beta: 0.1")
    assert rehearsal.write_test(COMMAND, tmp_path).read_text() != before


def test_a_program_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RequestError, match="there is no program 'trll' to rehearse"):
        rehearsal.write_test(["trll", "grpo"], tmp_path)
