"""``python -m verl.trainer.main_ppo`` under an interpreter that has no verl, or behind another package of that name."""

from __future__ import annotations

import os
import subprocess
import sys
import venv

import pytest

MODULE = "verl.trainer.main_ppo"
# Installed everywhere, so that what the remedy says is tried without verl as well.
EVERYWHERE = "json.tool"


@pytest.fixture
def bare(tmp_path):
    """An interpreter of its own, with the standard library alone."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.fixture
def other(tmp_path):
    """A folder with a package that has the name of one that is installed, and not its modules."""

    def other(name):
        package = tmp_path / "checkout" / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        return package.parent

    return other


def environment(**changed):
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | changed


def start(interpreter, module, environ, folder):
    """Start the module as a launch script does; its error where it is not found."""
    done = subprocess.run(
        [interpreter, "-m", module, "--help"], cwd=folder, env=environ, capture_output=True, text=True, timeout=120
    )
    assert not done.returncode, f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1]}"


@pytest.mark.reproduces("trainer-not-found")
def test_another_interpreter(bare, tmp_path):
    start(bare, MODULE, environment(), tmp_path)


@pytest.mark.reproduces("trainer-not-found", fidelity="injected")
@pytest.mark.needs("verl")
@pytest.mark.parametrize("how", ["pythonpath", "folder"])
def test_another_package_of_that_name(other, tmp_path, how):
    checkout = other("verl")
    environ = environment(PYTHONPATH=str(checkout)) if how == "pythonpath" else environment()
    start(sys.executable, MODULE, environ, checkout if how == "folder" else tmp_path)


@pytest.mark.guards("trainer-not-found")
def test_an_interpreter_without_it_is_named(subject, bare, tmp_path):
    why = subject(bare, MODULE, environment(), tmp_path)
    assert bare in why
    assert why.endswith(" verl")
    missing = str(tmp_path / "no" / "python")
    assert missing in subject(missing, MODULE, environment(), tmp_path)


@pytest.mark.guards("trainer-not-found")
def test_a_name_is_looked_for_where_the_run_looks(subject, bare, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "a-python").symlink_to(bare)
    here = environment(PATH=str(tmp_path / "bin"))
    assert subject("a-python", EVERYWHERE, here, tmp_path) is None
    assert "a-python" in subject("a-python", EVERYWHERE, environment(), tmp_path)
    monkeypatch.setenv("PATH", here["PATH"])
    assert "a-python" in subject("a-python", EVERYWHERE, {}, tmp_path), "the PATH of this process is not the run's"


@pytest.mark.guards("trainer-not-found", fidelity="injected")
@pytest.mark.parametrize("how", ["pythonpath", "folder"])
def test_what_hides_it_is_named(subject, bare, other, tmp_path, how):
    checkout = other("json")
    environ = environment(PYTHONPATH=str(checkout)) if how == "pythonpath" else environment()
    folder = checkout if how == "folder" else tmp_path
    why = subject(bare, EVERYWHERE, environ, folder)
    assert str(checkout / "json" / "__init__.py") in why
    assert EVERYWHERE in why
    assert bare in why
    (checkout / "json" / "tool.py").touch()
    assert subject(bare, EVERYWHERE, environ, folder) is None


@pytest.mark.guards("trainer-not-found")
def test_what_is_there_is_left_alone(subject, bare, tmp_path, monkeypatch):
    (tmp_path / "own" / "trainer").mkdir(parents=True)
    (tmp_path / "own" / "trainer" / "main.py").write_text("raise SystemExit('imported')\n")  # without __init__.py
    environ = environment(PYTHONPATH=str(tmp_path))
    before = dict(environ)
    assert subject(bare, "own.trainer.main", environ, tmp_path / "bare") is None
    assert subject(bare, "own.trainer.main", environment(), tmp_path) is None
    monkeypatch.chdir(tmp_path)
    assert subject(bare, "own.trainer.main", environment()) is None
    why = subject(bare, "own.trainer.other", environ, tmp_path)
    assert why.endswith(" has no module own.trainer.other"), f"nothing is hidden: {why}"
    assert "own.trainer.main.deeper" in subject(bare, "own.trainer.main.deeper", environ, tmp_path)
    assert environ == before


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("verl")
def test_the_installed_trainer_is_found(subject, tmp_path):
    assert subject(sys.executable, MODULE, environment(), tmp_path) is None
