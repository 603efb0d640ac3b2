import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent

# What verl prints of a finished step; a validation before the first or of a run resumed at its last has no time of one.
STEP = r"step:\d+ - .*timing_s/step"
# What two steps of verl 0.9.1 on a CPU wrote (vLLM 0.31, Ray 2.60), without the settings and the workers' warnings.
VERL_LOG = Path(__file__).with_name("verl_0.9.1.log")

# The work is done, if at all, by the line in the middle; the last one succeeds.
SCRIPTS = {"middle": '"$@" > train.log\necho "training finished"\n', "pipe": '"$@" | tee train.log\n'}
MAIN_PPO = ["-m", "verl.trainer.main_ppo"]


def run(folder, script, command):
    """The exit code of the script in a real shell, and the log it was to write."""
    done = subprocess.run(
        ["sh", "-c", SCRIPTS[script], "train.sh", *map(str, command)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        timeout=120,
    )
    return done.returncode, folder / "train.log"


@pytest.fixture
def without_verl(tmp_path):
    """Another interpreter than the one that verl is installed for."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    return tmp_path / "venv" / "bin" / "python"


def check_said(returncode, log):
    """The script says, by its exit code or in its log, that nothing was trained."""
    size = log.stat().st_size
    if not (returncode or size):
        silent(f"the training failed, its script ended with exit {returncode}, log of {size} bytes")


@pytest.mark.reproduces("silent-exit-zero")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
def test_verl_of_another_interpreter(tmp_path, without_verl, script):
    with act():
        check_said(*run(tmp_path, script, [without_verl, *MAIN_PPO]))


@pytest.mark.reproduces("silent-exit-zero")
@pytest.mark.needs("linux", "verl-trainer")
def test_verl_refuses_its_settings(tmp_path):
    with act():
        check_said(*run(tmp_path, "pipe", [sys.executable, *MAIN_PPO, "data.train_batch=8"]))


@pytest.mark.guards("silent-exit-zero")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_did_not_start_is_refused(tmp_path, subject, without_verl, script):
    _, log = run(tmp_path, script, [without_verl, *MAIN_PPO])
    with act(), pytest.raises(RuntimeError, match=f"{re.escape(str(log))}.*empty"):
        subject(0, log, STEP)  # what the documented scripts ended with, whatever this one did


@pytest.mark.guards("silent-exit-zero", fidelity="stand-in")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_trained_counts(tmp_path, subject, script):
    with act():
        subject(*run(tmp_path, script, ["cat", VERL_LOG]), STEP)
