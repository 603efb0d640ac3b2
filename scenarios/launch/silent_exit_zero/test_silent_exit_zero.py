"""The python line in the middle of a shell script fails, the script ends with exit 0 and its log is empty."""

from __future__ import annotations

import locale
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pytest_rlregress.failures.silent import silent

# What verl prints of a finished step; a validation before the first or of a run resumed at its last has no time of one.
STEP = r"step:\d+ - .*timing_s/step"
# What two steps of verl 0.9.1 on a CPU wrote (vLLM 0.31, Ray 2.60), without the settings and the workers' warnings.
VERL_LOG = Path(__file__).with_name("verl_0.9.1.log")
VERL_LINES = VERL_LOG.read_bytes().splitlines(keepends=True)

# The work is done, if at all, by the line in the middle; the last one succeeds.
SCRIPTS = {
    "middle": '"$@" > train.log\necho "training finished"\n',
    "pipe": '"$@" | tee train.log\n',
}
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
    check_said(*run(tmp_path, script, [without_verl, *MAIN_PPO]))


@pytest.mark.reproduces("silent-exit-zero")
@pytest.mark.needs("linux", "verl-trainer")
def test_verl_refuses_its_settings(tmp_path):
    check_said(*run(tmp_path, "pipe", [sys.executable, *MAIN_PPO, "data.train_batch=8"]))


@pytest.mark.guards("silent-exit-zero")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_did_not_start_is_refused(tmp_path, subject, without_verl, script):
    _, log = run(tmp_path, script, [without_verl, *MAIN_PPO])
    with pytest.raises(RuntimeError, match=f"{re.escape(str(log))}.*empty"):
        subject(0, log, STEP)  # what the documented scripts ended with, whatever this one did


@pytest.mark.guards("silent-exit-zero", fidelity="stand-in")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_trained_counts(tmp_path, subject, script):
    subject(*run(tmp_path, script, ["cat", VERL_LOG]), STEP)


@pytest.mark.guards("silent-exit-zero")
def test_a_log_counts_from_its_first_finished_step_on(tmp_path, subject):
    first = next(number for number, line in enumerate(VERL_LINES) if b"step:1 -" in line)
    for length in range(1, len(VERL_LINES) + 1):
        log = tmp_path / f"first-{length}.log"
        log.write_bytes(b"".join(VERL_LINES[:length]))
        if length > first:
            assert subject(0, log, STEP) is None
            continue
        with pytest.raises(RuntimeError, match=f"{re.escape(str(log))}.*step"):
            subject(0, log, STEP)


@pytest.mark.guards("silent-exit-zero")
@pytest.mark.parametrize(
    ("returncode", "text", "pattern", "why"),
    [
        (1, VERL_LOG.read_bytes(), STEP, "exit code 1"),
        (-11, VERL_LOG.read_bytes(), STEP, "exit code -11"),
        (0, b"", STEP, "empty"),
        (0, b" \n\r\n", STEP, "empty"),
        (0, b"step:100 - val-core/openai/gsm8k/acc/mean@1:np.float64(0.71)\n", STEP, "step"),
        (0, VERL_LOG.read_bytes(), r"'loss': ", "step"),
        (0, None, STEP, "no log"),
    ],
    ids=["exit-1", "killed", "nothing", "blank", "resumed-at-its-last-step", "another-trainers", "no-log"],
)
def test_neither_log_nor_code_alone(tmp_path, subject, returncode, text, pattern, why):
    log = tmp_path / "train.log"
    if text is not None:
        log.write_bytes(text)
    with pytest.raises(RuntimeError, match=why) as raised:
        subject(returncode, log, pattern)
    assert str(log) in str(raised.value)


@pytest.mark.guards("silent-exit-zero")
def test_a_step_anywhere_in_the_log(tmp_path, subject):
    log = tmp_path / "train.log"
    step = next(line for line in VERL_LINES if b"step:1 -" in line)
    log.write_bytes(b"\xff\xfe progress\r 10%\r" + step + b"later\n" * 1000)
    subject(0, log, STEP)


@pytest.mark.guards("silent-exit-zero")
@pytest.mark.needs("linux")
def test_the_log_is_utf8_whatever_the_locale(tmp_path, subject):
    log = tmp_path / "train.log"
    log.write_text("\u7b2c 1 \u6b65\n", encoding="utf-8")
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        subject(0, log, r"\u7b2c \d+ \u6b65")
        with pytest.raises(RuntimeError, match="step"):
            subject(0, log, r"\u7b2c \d+ \u56de")
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
