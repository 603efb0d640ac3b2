"""docs/audit.md: examples/audit writes the batches, and what the page shows is what is printed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import documents
import pytest
from installed import CHECKOUT

from pytest_rlregress.audit.batch import NAMES
from pytest_rlregress.audit.whole import CHECKS

pytestmark = pytest.mark.slow

# What rounding leaves differs from one processor to the next, and so does the token where it is largest.
ROUNDING = re.compile(r"\d\.\d+e-0\d|at most \S+ \(row \d+, token\s+\d+\)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    for component in ("torch", "transformers", "tensordict", "verl"):
        if importlib.util.find_spec(component) is None:  # imported here, verl would leave Ray's own path to search
            pytest.skip(f"needs {component}")
    return shutil.copytree(CHECKOUT / "examples" / "audit", tmp_path_factory.mktemp("document") / "audit")


def shown():
    """The commands of the document with what it shows below each."""
    found = []
    for line in documents.text("audit.md").splitlines():
        if line.startswith("    $ "):
            found.append((line.removeprefix("    $ "), []))
        elif not line or line.startswith("    "):
            found[-1][1].append(line)
        else:
            found.append(("", []))
    return [(command, "\n".join(lines)) for command, lines in found if command and "--model" not in command]


def alike(text):
    return " ".join(ROUNDING.sub("…", text).split())


def test_document_commands_print_the_document_output(folder):
    assert [command for command, _ in shown()] == [
        "python make_batch.py",
        "rlregress audit batch.pkl",
        "python break_batch.py",
        "rlregress audit broken.pkl",
        "python loop.py",
    ]
    for command, text in shown():
        program, *words = command.split()
        path = {"python": sys.executable, "rlregress": Path(sys.executable).with_name("rlregress")}[program]
        done = subprocess.run([path, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == (command == "rlregress audit broken.pkl"), done.stderr
        assert alike(done.stdout) == alike(text)


def test_example_makes_six_mistakes(folder):
    text = (folder / "break_batch.py").read_text()
    assert re.findall(r"^# (\d):", text, re.MULTILINE) == [*"123456"]


def test_the_document_has_every_check_and_every_name():
    text = documents.text("audit.md")
    checks = re.findall(r"^\| `([\w-]+)` \|", text.partition("## The checks")[2].partition("## ")[0], re.MULTILINE)
    assert checks == [*CHECKS, "gap"]
    for name in NAMES:
        assert f"`{name}`" in text, name


def test_a_training_loop_imports_no_pytest():
    script = "import sys, pytest_rlregress.audit; print([m for m in sys.modules if m in ('pytest', 'torch', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
