"""What docs say and docstrings show: import paths, pydoc, fixtures, the loss of docs/losses.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import documents
import pytest
from installed import CHECKOUT, call
from patience import PATIENCE

from pytest_rlregress.agreement.gradients import WEIGHTS
from pytest_rlregress.agreement.policy_batch import CHANGES

PACKAGE = CHECKOUT / "pytest_rlregress"
SOURCES = [path for folder in (PACKAGE, CHECKOUT / "fixtures", CHECKOUT / "scenarios") for path in folder.rglob("*.py")]
#: What writing-a-scenario.md makes.
MADE = "pytest_rlregress.remedies.checkpoints"


def test_pydoc_shows_functions_with_their_arguments():
    command = [sys.executable, "-m", "pydoc", "pytest_rlregress.remedies.batch"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout
    assert "align_batches(batches: 'Sequence[DataProto]', from_memory_db: 'Sequence[bool]')" in shown
    assert "Raises:" in shown


def docstrings(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""


def importable(name):
    """What a dotted name leads to: a module, or what one has, also of fields without a value."""
    try:
        return resolve_name(name)
    except (ImportError, AttributeError):
        return None


def test_paths_in_docstrings_can_be_imported():
    ours = {path.stem for path in PACKAGE.iterdir()}
    wrong = []
    for path in SOURCES:
        for name in re.findall(r"``((?:[^\W\d]\w*\.)+\w+)(?:\(.*?\))?``", "\n".join(docstrings(path))):
            begins = name.partition(".")[0]
            if begins in ours or (begins == "pytest_rlregress" and importable(name) is None):
                wrong.append(f"{path.relative_to(CHECKOUT)}: {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "path", [CHECKOUT / "README.md", *sorted(documents.DOCS.rglob("*.md"))], ids=lambda path: path.stem
)
def test_paths_in_documents_can_be_imported(path: Path):
    named = set(re.findall(r"pytest_rlregress(?:\.\w+)+", path.read_text())) - {MADE}
    assert {name for name in named if importable(name) is None} == set()


def test_every_fixture_has_a_description():
    shown = call(sys.executable, "-m", "pytest", "--fixtures", "-q", "-p", "no:randomly", cwd=documents.DOCS)
    for name in documents.find_fixtures():
        described = re.search(rf"^{name}(?: \[\w+ scope\])? -- \S*declare_\w+\.py:\d+\n    (\S.*)", shown, re.MULTILINE)
        assert described, f"{name} is not shown, or without a docstring"
        assert described[1].rstrip().endswith((".", ":")) or ": " in described[1], described[1]


def test_documented_loss_gives_the_documented_error(run):
    [(name, body)] = documents.files("losses.md").items()
    result = run({name.removesuffix(".py"): body}, name)
    result.assert_outcomes(passed=1, failed=1)
    [printed] = re.findall(r"^    (AssertionError: .*)$", documents.text("losses.md"), re.MULTILINE)
    result.stdout.fnmatch_lines([f"E * {printed}"])


def test_table_of_losses_has_every_name():
    rows = re.findall(r'^\| `"?([\w-]+)"?` \|', documents.text("losses.md"), re.MULTILINE)
    assert rows == ["expected", *WEIGHTS, *CHANGES]
