"""docs/writing-a-scenario.md: its files, put into a copy of the project as printed, do what it says they do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import documents
import pytest
from installed import CHECKOUT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files():
    found = documents.files("writing-a-scenario.md")
    assert len(found) == 5
    return found


def copied_project(folder):
    """A copy of this project, in which pytest and the command are those of the copy."""
    copy = folder / "project"
    copy.mkdir()
    for name in ("pytest_rlregress", "scenarios", "fixtures", "hardware_markers", "tests"):
        shutil.copytree(CHECKOUT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", copy)
    return copy


@pytest.fixture(scope="module")
def project(files, tmp_path_factory):
    copy = copied_project(tmp_path_factory.mktemp("checkout"))
    documents.write(files, copy)
    (copy / "scenarios" / "checkpoints" / "weights_only_resume" / "__init__.py").touch()
    with (copy / "pytest_rlregress" / "remedies" / "__init__.py").open("a") as file:
        file.write("from pytest_rlregress.remedies.checkpoints import *\n")
    return copy


def pytest_in(project, *options):
    paths = os.pathsep.join(map(str, [project, project / "tests"]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=280)
    return done.stdout + done.stderr


def test_documented_scenario_reproduces_and_holds(project):
    printed = pytest_in(project, "--hw=cpu", "-v", "-k", "weights_only")
    assert printed.count("REPRODUCED") == 2, printed
    assert printed.count("HELD") == 2, printed


def test_documented_mutants_are_noticed(project):
    printed = pytest_in(project, "tests/stack/scenarios/test_mutants.py", "-k", "weights-only")
    assert "5 passed" in printed, printed


def test_documented_files_pass_the_linter(files, project):
    names = [name for name in files if name.endswith(".py")]
    for command in (["check", "--no-cache"], ["format", "--diff"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *names], cwd=project, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
