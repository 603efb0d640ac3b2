from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest
from installed import CHECKOUT
from patience import PATIENCE


@pytest.fixture
def script(monkeypatch):
    """A script of tools/, by name."""
    monkeypatch.syspath_prepend(CHECKOUT / "tools")
    return importlib.import_module


@pytest.fixture
def runs(tmp_path):
    """The records of four runs, of which the second and third are bad."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    found = []
    for number, good in enumerate((True, False, False, True)):
        (tmp_path / "test_it.py").write_text(f"def test_it():\n    assert {good}\n")
        command = [sys.executable, "-m", "pytest", "--hw=cpu", "-q", f"--rl-record-dir=records{number}", "test_it.py"]
        subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE)
        (path,) = (tmp_path / f"records{number}").glob("*.json")
        record = json.loads(path.read_text())
        record["results"]["extra"]["stack"]["requirements"] += ["made-up==2"] if number else []
        path.write_text(json.dumps(record))
        found.append(path)
    return found
