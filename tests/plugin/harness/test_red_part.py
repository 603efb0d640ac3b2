"""The answer of a red run ends with a command that runs the red part again, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

SCENARIO = """
import os
import pytest

@pytest.mark.guards("short-column")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_remedy(number):
    assert number % 2 == 0 or os.path.exists("mended")

@pytest.mark.guards("short-column")
def test_other():
    pass
"""


@pytest.fixture
def red_line(pytester, run, short_column):
    """Run a red scenario: ``red_line(*options)`` is the answer's last line, the command."""

    def red_line(*options):
        (pytester.path / "mine" / "test_a b.py").write_text(SCENARIO)
        result = run({}, "--hw=cpu", *options)
        assert result.ret == 1
        at = result.outlines.index("To run the red part again:")
        assert any("= answer =" in line for line in result.outlines[:at])
        return result.outlines[at + 1]

    return red_line


@pytest.fixture
def again(pytester):
    """Run a line in a shell, and return its exit code and its last line."""

    def again(line):
        path = os.path.dirname(shutil.which("pytest") or "")
        environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", line], cwd=pytester.path, env=environment, capture_output=True, text=True)
        return done.returncode, (done.stdout or done.stderr).splitlines()[-1]

    return again


def test_names_the_failed_tests_alone(red_line, again, pytester):
    line = red_line(
        "mine", "-k", "remedy or other", "-q", "--junitxml=all.xml", "--rl-record-dir", "records", "-x", "--maxfail=9"
    )
    assert line.endswith(" --hw=cpu 'mine/test_a b.py::test_remedy[1]' 'mine/test_a b.py::test_remedy[3]'"), line
    code, said = again(line)
    assert (code, "2 failed" in said) == (1, True), said
    (pytester.path / "mended").touch()
    code, said = again(line)
    assert (code, "2 passed" in said) == (0, True), said


def test_has_the_settings_of_the_run(red_line, again, pytester, monkeypatch):
    monkeypatch.setenv("RLREGRESS_TIMEOUT", "50")
    monkeypatch.setenv("RLREGRESS_RECORD_DIR", str(pytester.path / "records"))
    line = red_line("mine", "--rl-memory", "4GiB", "-p", "no:cacheprovider", "-o", "console_output_style=classic")
    assert line.startswith("RLREGRESS_TIMEOUT=50 ")
    assert " --hw=cpu --rl-memory 4GiB -p no:cacheprovider -o console_output_style=classic 'mine" in line
    monkeypatch.delenv("RLREGRESS_TIMEOUT")
    monkeypatch.delenv("RLREGRESS_RECORD_DIR")
    code, said = again(line)
    assert (code, "2 failed" in said) == (1, True), said


def test_names_files_where_many_tests_failed(red_line, pytester, monkeypatch):
    monkeypatch.setitem(globals(), "SCENARIO", SCENARIO.replace("[1, 2, 3]", "range(1, 40, 2)"))
    assert red_line("mine").endswith(" --hw=cpu 'mine/test_a b.py'")


def test_green_run_has_no_such_line(red_line, run, pytester):
    red_line("mine")
    (pytester.path / "mended").touch()
    result = run({}, "--hw=cpu", "mine")
    assert result.ret == 0
    assert "red part" not in result.stdout.str()


def test_summary_of_a_job_has_it(red_line, pytester, monkeypatch):
    summary = pytester.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    line = red_line("mine")
    assert f"### To run the red part again\n\n```\n{line}\n```\n" in summary.read_text()
