import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.scenarios.rollout.max_tokens_overflow.test_max_tokens_overflow import (
    LIMIT,
    MAX_TOKENS,
    PROMPT_LENGTH,
    complete,
)

ROLLOUTS = 8
REFUSED = "400 Bad Request|maximum context length"
PATIENCE = 1.0  # seconds; containment gives a stalled engine 4
TOO_LONG = LIMIT + 1  # tokens of a prompt; from vLLM 0.32 on a server refuses no more, and serves what fits


def orchestrate(server, max_tokens, check=lambda: None, prompt_length=PROMPT_LENGTH):
    """Wait for eight rollouts like the documented trainer, calling a watchdog's check meanwhile."""
    import openai

    def rollout():
        with suppress(openai.OpenAIError):  # one lost rollout must not end the run
            return complete(server, prompt_length, max_tokens)

    with ThreadPoolExecutor(ROLLOUTS) as pool:
        rollouts = [pool.submit(rollout) for _ in range(ROLLOUTS)]
        while True:
            came = sum(future.done() and future.result() is not None for future in rollouts)
            print(f"{came}/{ROLLOUTS} rollouts")
            if came == ROLLOUTS:
                return
            check()
            time.sleep(0.25)


def words_of(check, seconds):
    """Call a watchdog's check for so long, and once more after it; what it says, or None."""
    end = time.monotonic() + seconds
    is_over = False
    while not is_over:
        is_over = time.monotonic() > end
        try:
            check()
        except RuntimeError as error:
            return str(error)
        time.sleep(0.02)
    return None


def on_time(check, log):
    """The check, that must raise once its patience is over since a call after which the log had a new refusal."""
    begin, found = log.stat().st_size, []

    def check_on_time():
        is_due = found and time.monotonic() > found[0] + PATIENCE
        is_logged = re.search(REFUSED, log.read_bytes()[begin:].decode(errors="replace"))
        check()
        assert not is_due, "the watchdog waits longer than it was told to"
        if is_logged:
            found.append(time.monotonic())

    return check_on_time


@pytest.mark.guards("stalled-rollout")
def test_watchdog_is_silent_while_rollouts_come(vllm_server, subject):
    import openai

    with pytest.raises(openai.BadRequestError):  # of an earlier run
        complete(vllm_server, TOO_LONG, 1)
    with act():
        check = subject(vllm_server.log_path, PATIENCE)
    orchestrate(vllm_server, 8, check)
    assert words_of(check, 1.5 * PATIENCE) is None


@pytest.mark.guards("stalled-rollout")
def test_watchdog_ends_the_run(vllm_server, subject):
    vllm_server.wait_until_ready()
    check = on_time(subject(vllm_server.log_path, PATIENCE), vllm_server.log_path)
    with act(), pytest.raises(RuntimeError, match=REFUSED):
        orchestrate(vllm_server, 1, check, TOO_LONG)


@pytest.mark.reproduces("stalled-rollout")
def test_orchestrator_waits_for_ever(vllm_server):
    orchestrate(vllm_server, MAX_TOKENS)
