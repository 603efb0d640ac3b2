"""A scenario with a subject of one's own, as a document prints it: outside the checkout, run from the wheel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import documents
import pytest
from installed import CHECKOUT, call, environment, install

pytestmark = pytest.mark.slow

SAID = re.compile(r"^    ((?:- reasoning-is-rewarded: |OK on cpu: 1 of 1 |FAILED on cpu: reasoning-).*)$", re.MULTILINE)
SETTING = re.compile(r'^ *\$ export (\w+)="(.*)"$', re.MULTILINE)


@pytest.fixture(scope="module")
def files():
    printed = documents.files("your-code.md")
    found = {path: text for path, text in printed.items() if path.startswith("lab/")}
    assert len(found) == 5
    return found


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
def pytest_in_lab(files, python, tmp_path):
    """``pytest_in_lab(*options, code=…, **environment)``: what pytest prints there."""
    documents.write(files, tmp_path)
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


def test_documented_files_pass_the_linter(files, tmp_path):
    documents.write(files, tmp_path)
    config = CHECKOUT / "pyproject.toml"
    for command in (["check", "--no-cache"], ["format", "--diff"]):
        call(sys.executable, "-m", "ruff", *command, "--config", config, ".", cwd=tmp_path / "lab")
