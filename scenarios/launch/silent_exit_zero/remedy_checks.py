"""A run has finished if its exit code is 0 and its log has a finished step: neither alone is enough."""

import re

import pytest

from pytest_rlregress.scenarios.launch.silent_exit_zero.test_silent_exit_zero import STEP, VERL_LOG

VERL_LINES = VERL_LOG.read_bytes().splitlines(keepends=True)


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
def test_rejects_a_log_or_an_exit_code_alone(tmp_path, subject, returncode, text, pattern, why):
    log = tmp_path / "train.log"
    if text is not None:
        log.write_bytes(text)
    with pytest.raises(RuntimeError, match=why) as raised:
        subject(returncode, log, pattern)
    assert str(log) in str(raised.value)
