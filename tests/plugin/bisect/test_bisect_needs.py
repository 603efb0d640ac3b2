"""What a test needs: what its processes import when it runs here once, and what it turns out to lack at an end."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from patience import PATIENCE

from pytest_rlregress.commands.bisect.releases import find_providers
from pytest_rlregress.trials import pytest_run
from pytest_rlregress.trials.pytest_run import TrialRequest

IMPORTS = """
    import importlib, os, subprocess, sys
    import by_statement
    importlib.import_module("by_name")
    import _testcapi  # an extension module
    if os.fork() == 0:
        import by_fork
        os._exit(0)
    os.wait()
    subprocess.run([sys.executable, "-c", "import by_process"], check=True)
    os.closerange(3, 100)
    import after_all_is_closed
    importlib.util.find_spec("looked_for")
    os.abort()
"""


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Runs code with its imports recorded; the names of the files that were."""
    recorder = tmp_path / "recorder"
    recorder.mkdir()
    pytest_run.write_recorder(recorder)

    def run(code):
        (tmp_path / "code.py").write_text(inspect.cleandoc(code))
        path = os.pathsep.join(map(str, (recorder, tmp_path)))
        done = subprocess.run([sys.executable, "code.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
        written = recorder / "imported"
        return done.returncode, [Path(line).name.partition(".")[0] for line in written.read_text().splitlines()]

    return run


def test_imports_of_all_processes_are_recorded_however_they_end(recorded, tmp_path):
    used = ("by_statement", "by_name", "by_fork", "by_process", "after_all_is_closed")
    for name in (*used, "looked_for"):
        (tmp_path / f"{name}.py").write_text("")
    code, seen = recorded(IMPORTS)
    assert code == -6
    assert {*used, "_testcapi"} <= {*seen}
    assert "looked_for" not in seen
    assert all(seen.count(name) == 1 for name in used)


def test_the_sitecustomize_of_the_environment_still_runs(recorded, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['CUSTOMIZED'] = 'yes'\n")
    code, _ = recorded("import os, sys\nsys.exit(os.environ['CUSTOMIZED'] != 'yes')")
    assert code == 0


def test_imported_files_give_the_needed_packages(tmp_path):
    jinja2 = Path(metadata.distribution("jinja2").locate_file("jinja2"))
    files = {str(jinja2 / "loaders.py"), str(tmp_path / "tests/__init__.py"), str(Path(pytest.__file__))}
    assert find_providers(files) == {"jinja2"}  # verl has a folder "tests", too; pytest is everywhere
    assert find_providers(set()) == set()


@pytest.mark.slow
def test_runs_only_plain_tests_to_find_their_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    body = """
        import pathlib, subprocess, sys
        import pytest

        {marker}
        def test_it():
            pathlib.Path("ran").touch()
            subprocess.run([sys.executable, "-c", "import jinja2"], check=True)
            assert False
    """
    for name, marker in (("plain", ""), ("said", "@pytest.mark.needs('tokenizers')")):
        (tmp_path / f"test_{name}.py").write_text(inspect.cleandoc(body.format(marker=marker)))
    said, plain = (
        pytest_run.run_tests(
            Path(sys.executable), TrialRequest((f"test_{name}.py",), finds_needs=True), timeout=PATIENCE, say=print
        )
        for name in ("said", "plain")
        if not Path("ran").exists()  # the first one does not
    )
    assert said.needed == ("tokenizers",)
    assert (plain.needed, plain.trouble) == (None, "")
    assert plain.observations["test_plain.py::test_it"].verdict == "failed"
    found = find_providers(frozenset(plain.imported))
    assert {"jinja2", "markupsafe"} <= found
    assert not found & {"pytest", "psutil", "torch", "transformers", "tokenizers", "ray", "verl", "trl"}
