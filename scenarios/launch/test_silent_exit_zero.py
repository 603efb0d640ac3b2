"""The python line in the middle of a shell script fails, the script ends with exit 0 and its log is empty."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

STEP = r"step:\d+ -"

# The work is done, if at all, by the line in the middle; the last one succeeds.
SCRIPTS = {
    "middle": '"$PYTHON" -S train.py > train.log\necho "training finished"\n',
    "pipe": '"$PYTHON" -S train.py | tee train.log\n',
}

TRAINS = "print('loading weights')\nfor step in range(1, 4): print(f'step:{step} - loss:0.5')\n"
FAILS_AT_IMPORT = f"import trainer_that_is_not_installed\n{TRAINS}"
FAILS_BEFORE_A_STEP = "print('loading weights, 3 steps to go')\nraise SystemExit('CUDA out of memory')\n"


def run(folder, train, script):
    """The exit code of the script in a real shell, and the log it was to write."""
    (folder / "train.py").write_text(train)
    done = subprocess.run(
        ["sh", "-c", SCRIPTS[script]],
        cwd=folder,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        timeout=60,
    )
    return done.returncode, folder / "train.log"


@pytest.mark.reproduces("silent-exit-zero")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
def test_exit_code_says_finished(tmp_path, script):
    returncode, log = run(tmp_path, FAILS_AT_IMPORT, script)
    size = log.stat().st_size
    assert returncode or size, (
        f"silent: the training failed, its script ended with exit {returncode}, log of {size} bytes"
    )


@pytest.mark.guards("silent-exit-zero")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("train", "why"), [(FAILS_AT_IMPORT, "empty"), (FAILS_BEFORE_A_STEP, "step")], ids=["no-line", "no-step"]
)
def test_what_did_not_train_is_refused(tmp_path, subject, script, train, why):
    _, log = run(tmp_path, train, script)
    with pytest.raises(RuntimeError, match=f"{re.escape(str(log))}.*{why}"):
        subject(0, log, STEP)  # what the documented scripts ended with, whatever this one did


@pytest.mark.guards("silent-exit-zero")
@pytest.mark.needs("linux")
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_trained_counts(tmp_path, subject, script):
    subject(*run(tmp_path, TRAINS, script), STEP)


@pytest.mark.guards("silent-exit-zero")
@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (1, b"step:1 - loss:0.5\n"),
        (-11, b"step:1 - loss:0.5\n"),
        (0, b" \n\r\n"),
        (0, b"global step: none\n"),
        (0, None),
    ],
    ids=["exit-1", "killed", "blank", "other-words", "no-log"],
)
def test_neither_log_nor_code_alone(tmp_path, subject, returncode, text):
    log = tmp_path / "train.log"
    if text is not None:
        log.write_bytes(text)
    with pytest.raises(RuntimeError):
        subject(returncode, log, STEP)


@pytest.mark.guards("silent-exit-zero")
def test_a_step_anywhere_in_the_log(tmp_path, subject):
    log = tmp_path / "train.log"
    log.write_bytes(
        b"\xff\xfe progress\r 10%\r\x1b[36m(TaskRunner pid=7)\x1b[0m step:1 - loss:0.5\n" + b"later\n" * 1000
    )
    subject(0, log, STEP)
