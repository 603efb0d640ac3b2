"""docs/fixtures.md: each fixture has an example, and each example does what the page says, as printed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import documents
import needs
import pytest

from pytest_rlregress.fixtures import declare
from pytest_rlregress.fixtures.stack_fixtures import STACK_FIXTURES

PRINTED = documents.files("fixtures.md")
TESTS = [path for path in PRINTED if path.rpartition("/")[2].startswith("test_")]
LONG = [path for path in TESTS if "pytest.mark.long" in PRINTED[path]]
#: What another fixture is made of, and what has its example in writing-a-scenario.md.
INNER = {"kept_runs", "rank_server", "shared_training_step"}
ELSEWHERE = {"subject"}


def asked_for():
    """Every argument of a function in the examples, and what a marker names."""
    nodes = [node for text in PRINTED.values() for node in ast.walk(ast.parse(text))]
    names = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {node.value for node in nodes if isinstance(node, ast.Constant)}


def test_every_fixture_has_an_example():
    assert {*declare.__all__} - INNER - ELSEWHERE - asked_for() == set()


def test_the_table_says_what_asking_marks():
    section = documents.text("fixtures.md").partition("## Asking is marking")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*STACK_FIXTURES} - INNER


def outcomes_of(folder, *options):
    """By file of the page, what came of its tests: "passed" or the report's text."""
    documents.write(PRINTED, folder)
    folder.joinpath("pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "--junitxml=junit.xml", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=580)
    assert (folder / "junit.xml").exists(), done.stdout + done.stderr
    found = {path: [] for path in TESTS}
    for case in ET.parse(folder / "junit.xml").iter("testcase"):
        path = case.get("classname").replace(".", "/") + ".py"
        other = [
            f"{child.get('message')} {child.text}" for child in case if child.tag in ("failure", "error", "skipped")
        ]
        found.get(path, []).append(" ".join(other) or "passed")
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What came of all but the long ones, in one run: the stack is imported once, a folder's files share a process."""
    return outcomes_of(tmp_path_factory.mktemp("page"), "suite")


@needs.stack
@pytest.mark.parametrize("path", [path for path in TESTS if path not in LONG])
def test_example_runs_as_printed(outcomes, path):
    assert {*outcomes[path]} == {"passed"}


@needs.stack
@pytest.mark.slow
@pytest.mark.parametrize("path", LONG)
def test_long_example_runs_as_printed(tmp_path, path):
    assert {*outcomes_of(tmp_path, "--rl-long", path)[path]} == {"passed"}


def test_files_are_as_the_linter_wants_them(tmp_path):
    documents.write(PRINTED, tmp_path)
    config = documents.DOCS.parent / "pyproject.toml"
    for command in (["check", "--no-cache", "--extend-ignore", "D1"], ["format", "--diff"]):
        command = [sys.executable, "-m", "ruff", *command, "--config", str(config), "."]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
