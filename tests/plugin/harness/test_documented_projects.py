"""The projects that documents print do what they say: a scenario for this project, one elsewhere, a trainer's code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import documents
import pytest
from installed import CHECKOUT, call, environment, install
from patience import PATIENCE

pytestmark = pytest.mark.slow

SAID = re.compile(r"^    ((?:- reasoning-is-rewarded: |OK on cpu: 1 of 1 |FAILED on cpu: reasoning-).*)$", re.MULTILINE)
SETTING = re.compile(r'^ *\$ export (\w+)="(.*)"$', re.MULTILINE)
EXAMPLE = CHECKOUT / "examples" / "mytrainer"
# What needs no engine: the whole of it takes a minute and more.
CHOSEN = "(dataproto or max_tokens) and not server and not offline and not chat"
#: Of both documents the files that they print.
FOR_THIS_PROJECT = documents.files("writing-a-scenario.md")
FOR_A_LAB = {path: text for path, text in documents.files("your-code.md").items() if path.startswith("lab/")}


@pytest.mark.parametrize(("files", "root"), [(FOR_THIS_PROJECT, "."), (FOR_A_LAB, "lab")], ids=["project", "lab"])
def test_documented_files_pass_the_linter(files, root, tmp_path):
    assert len(files) == 5
    documents.write(files, tmp_path)
    config = CHECKOUT / "pyproject.toml"
    for command in (["check", "--no-cache"], ["format", "--diff"]):
        call(sys.executable, "-m", "ruff", *command, "--config", config, ".", cwd=tmp_path / root)


# -- docs/writing-a-scenario.md, in a copy of the project --------------------------------------------------------------


def copied_project(folder):
    """A copy of this project, in which pytest and the command are those of the copy."""
    copy = folder / "project"
    copy.mkdir()
    for name in ("pytest_rlregress", "scenarios", "fixtures", "hardware_markers", "tests"):
        shutil.copytree(CHECKOUT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", copy)
    return copy


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    copy = copied_project(tmp_path_factory.mktemp("checkout"))
    documents.write(FOR_THIS_PROJECT, copy)
    (copy / "scenarios" / "checkpoints" / "weights_only_resume" / "__init__.py").touch()
    with (copy / "pytest_rlregress" / "remedies" / "__init__.py").open("a") as file:
        file.write("from pytest_rlregress.remedies.checkpoints import *\n")
    return copy


def pytest_in(project, *options):
    paths = os.pathsep.join(map(str, [project, project / "tests" / "support"]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout + done.stderr


def test_documented_scenario_reproduces_and_holds(project):
    printed = pytest_in(project, "--hw=cpu", "-v", "-k", "weights_only")
    assert printed.count("REPRODUCED") == 2, printed
    assert printed.count("HELD") == 2, printed


def test_documented_mutants_are_noticed(project):
    printed = pytest_in(project, "tests/stack/scenarios/test_mutants.py", "-k", "weights-only")
    assert "5 passed" in printed, printed


# -- docs/your-code.md: a scenario of one's own, outside the checkout, run from the wheel ------------------------------


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Python of an environment with the wheel, and sure not to see the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    python = environment(folder / "venv")
    install(python, wheel)
    where = call(python, "-c", "import pytest_rlregress as p; print(p.__file__)", cwd=folder).strip()
    assert Path(where).is_relative_to(folder)
    return python


@pytest.fixture
def pytest_in_lab(python, tmp_path):
    """``pytest_in_lab(*options, code=…, **environment)``: what pytest prints there."""
    documents.write(FOR_A_LAB, tmp_path)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and "RLREGRESS" not in name}

    def pytest_in_lab(*options, code=0, **variables):
        # The script, as the documents have it: -m would put this folder on the path, and hide a lack of pythonpath.
        script = Path(sys.executable).with_name("pytest")
        return call(
            python,
            script,
            "-p",
            "no:cacheprovider",
            *options,
            cwd=tmp_path / "lab",
            code=code,
            env={**kept, **variables},
        )

    return pytest_in_lab


def check_printed(lines, printed):
    """Check that a run says what the document has in these lines of it."""
    words = " ".join(printed.split())
    said = SAID.findall(documents.text("your-code.md"))
    assert len(said) == 3
    assert [line for line in said[lines] if line not in words] == [], printed


def test_own_scenario_runs_beside_the_shipped_ones(pytest_in_lab, tmp_path):
    documents.write({"lab/tests/test_plain.py": "def test_of_my_own(): pass\n"}, tmp_path)
    printed = pytest_in_lab("--hw=cpu", "-k", "reasoning-is-rewarded")
    check_printed(slice(1), printed)
    assert int(re.search(r"collected (\d+) items", printed)[1]) > 300
    assert re.search(r"^shipped scenarios: \d+; yours: 4 of scenarios \(tests did not run: ", printed, re.M), printed


def test_broken_subject_fails_as_documented(pytest_in_lab):
    document = documents.text("your-code.md")
    printed = pytest_in_lab("--hw=cpu", "scenarios", code=1, **dict(SETTING.findall(document)))
    check_printed(slice(1, 3), printed)


def test_wrong_subject_is_a_usage_error(pytest_in_lab, tmp_path):
    entry = tmp_path / "lab" / "scenarios" / "rewards" / "reasoning_is_rewarded" / "failure.toml"
    entry.write_text(entry.read_text().replace("visible_text", "visible_txt"))
    printed = pytest_in_lab("--hw=cpu", code=pytest.ExitCode.USAGE_ERROR)
    message = documents.text("your-code.md").partition("ERROR: …/")[2].partition("\n\n")[0]
    assert " ".join(message.split()) in printed


# -- docs/your-code.md: a trainer's own functions under the guards, sound and broken -----------------------------------


@pytest.mark.parametrize(("options", "worst"), [([], "held"), (["-c", "broken.toml"], "regressed")])
def test_guards_exercise_the_users_functions(tmp_path, options, worst):
    project = shutil.copytree(EXAMPLE, tmp_path / "mytrainer")
    command = [sys.executable, "-m", "pytest", "--hw=cpu", "-k", CHOSEN, "--junitxml=junit.xml", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=PATIENCE)
    seen = {}
    for case in ET.parse(project / "junit.xml").getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if said.get("rlregress_side") == "guards":
            seen.setdefault(said["rlregress_subject"].partition(":")[2], set()).add(said["rlregress_verdict"])
    assert {name: max(verdicts) for name, verdicts in seen.items()} == {"same_columns": worst, "token_budget": worst}
    assert set().union(*seen.values()) <= {"held", "regressed"}, done.stdout
