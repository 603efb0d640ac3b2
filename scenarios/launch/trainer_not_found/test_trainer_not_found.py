import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.launch.trainer_not_found import interpreters
from pytest_rlregress.scenarios.own_command import read_answer

MODULE = "verl.trainer.main_ppo"
VERL = ["-m", MODULE, "data.train_batch_size=8"]
HIDDEN = pytest.mark.parametrize("how", ["pythonpath", "folder"])


@pytest.fixture
def bare(tmp_path):
    """An interpreter with the standard library alone."""
    return interpreters.make_interpreter(tmp_path / "bare", without=None)


@pytest.fixture
def hide_verl(tmp_path, monkeypatch):
    """Put another package named verl in front of the installed one."""

    def hide_verl(how):
        checkout = interpreters.make_other_package(tmp_path, "verl")
        if how == "pythonpath":
            monkeypatch.setenv("PYTHONPATH", str(checkout))
        else:
            monkeypatch.chdir(checkout)
        return checkout

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    return hide_verl


def start(interpreter, *arguments):
    """Start verl as a launch script does; what it prints, or the last line of its error."""
    command = [interpreter, "-m", MODULE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr.strip().splitlines()[-1]
    return done.stdout


def look_before_the_start(*command):
    """What ``rlregress preflight`` finds of this failure, on the machine that runs the command."""
    report = read_answer("preflight", "--hw=cpu", "--installed", "--", *command)
    found = [one for one in report["findings"] if one["failure"] == "trainer-not-found"]
    assert found or "trainer-not-found" in report["checked"]
    return [one["why"] for one in found]


@pytest.mark.reproduces("trainer-not-found")
@pytest.mark.needs("linux")
def test_another_interpreter(bare, hide_verl):
    with act():
        start(bare, "--help")


@pytest.mark.reproduces("trainer-not-found", fidelity="injected")
@pytest.mark.needs("verl")
@HIDDEN
def test_another_package_of_that_name(hide_verl, how):
    hide_verl(how)
    with act():
        start(sys.executable, "--help")


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("verl-trainer")
def test_the_interpreter_by_its_path_starts_verl(bare, hide_verl, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(bare).parent), prepend=os.pathsep)
    with act():
        composed = start(sys.executable, "--cfg", "job", "trainer.total_epochs=7")
        assert "total_epochs: 7" in composed


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("linux", "verl")
@pytest.mark.parametrize("by", ["path", "name"])
def test_preflight_names_the_interpreter(bare, hide_verl, by):
    words = [bare] if by == "path" else ["env", f"PATH={Path(bare).parent}", "python"]
    with act():
        [why] = look_before_the_start(*words, *VERL)
        assert why == f"{bare} has no module verl"


@pytest.mark.guards("trainer-not-found", fidelity="injected")
@pytest.mark.needs("verl")
@HIDDEN
def test_preflight_names_what_hides_verl(hide_verl, how):
    checkout = hide_verl(how)
    with act():
        [why] = look_before_the_start(sys.executable, *VERL)
        other = checkout / "verl" / "__init__.py"
        assert why.startswith(f"{other} has no verl.trainer, and hides the package that ")


@pytest.mark.guards("trainer-not-found")
@pytest.mark.needs("verl-trainer")
def test_preflight_passes_the_right_interpreters(hide_verl):
    workers = f"+ray_kwargs.ray_init.runtime_env.py_executable={sys.executable}"
    with act():
        assert look_before_the_start(sys.executable, *VERL, workers) == []
