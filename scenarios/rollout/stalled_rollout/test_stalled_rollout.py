"""The server refuses every rollout, the trainer swallows that and waits: 0/8 rollouts for ever, and no word of why."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pytest_rlregress.scenarios.rollout.max_tokens_overflow.test_max_tokens_overflow import (
    LIMIT,
    MAX_TOKENS,
    PROMPT_LENGTH,
    complete,
)

ROLLOUTS = 8
PATIENCE = 1.0  # seconds; containment gives a stalled engine 4
TOO_LONG = LIMIT + 1  # tokens of a prompt; from vLLM 0.32 on a server refuses no more, and serves what fits

COMPLETED = 'INFO:     127.0.0.1:42944 - "POST /v1/completions HTTP/1.1" 200 OK\n'
REFUSED = 'INFO:     127.0.0.1:35682 - "POST /v1/completions HTTP/1.1" 400 Bad Request\n'
HARMLESS = """\
(EngineCore pid=7) WARNING 11-21 16:08:40 [utils.py:579] Failed to create oneDNN linear. Exception: could not create it
INFO:     127.0.0.1:35670 - "GET /v1/error HTTP/1.1" 404 Not Found
(APIServer pid=1) INFO 11-21 16:15:44 [log_response.py:141] response_body={{"text":"ERROR: EngineDeadError"}}
INFO:     127.0.0.1:35671 - "POST /v1/completions HTTP/1.1" 503 Service Unavailable
"""
LOGGED = {  # by real servers, shortened; the words that tell the cause
    "refused": (REFUSED, "400 Bad Request"),
    "refused-process-named": (f"(APIServer pid=1) {REFUSED}", "400 Bad Request"),
    "refused-answers-logged": (
        "(APIServer pid=1) INFO 11-21 16:15:45 [log_response.py:141] "
        'response_body={{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, you '
        'requested 4000 output tokens and your prompt contains 1297.","type":"BadRequestError","code":400}}}\n'
        + REFUSED,
        "you requested 4000 output tokens",
    ),
    "refused-2025": (
        """\
(APIServer pid=1) ERROR 12-01 05:34:47 [serving_chat.py:264] Error in preprocessing prompt inputs
(APIServer pid=1) ERROR 12-01 05:34:47 [serving_chat.py:264] Traceback (most recent call last):
(APIServer pid=1) ERROR 12-01 05:34:47 [serving_chat.py:264]     ) = await self._preprocess_chat(
(APIServer pid=1) ERROR 12-01 05:34:47 [serving_chat.py:264] ValueError: 'max_tokens' is too large: 32000.
"""
        + REFUSED,
        "'max_tokens' is too large: 32000",
    ),
    "engine-died": (
        """\
(APIServer pid=1) ERROR 11-21 16:08:50 [async_llm.py:871] AsyncLLM output_handler failed.\r
(APIServer pid=1) ERROR 11-21 16:08:50 [async_llm.py:871] Traceback (most recent call last):\r
(APIServer pid=1) ERROR 11-21 16:08:50 [async_llm.py:871]     raise self._format_exception(outputs) from None\r
(APIServer pid=1) ERROR 11-21 16:08:50 [async_llm.py:871] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
INFO:     127.0.0.1:33384 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
INFO:     Shutting down
""",
        "EngineDeadError: EngineCore encountered an issue",
    ),
}


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
    """Call a watchdog's check for so long; what it says, or None."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            check()
        except RuntimeError as error:
            return str(error)
        time.sleep(0.02)
    return None


def write(log, text):
    """Let a process that dies of SIGKILL at once write to the log."""
    write_and_die = "import os, sys; os.write(1, sys.argv[1].encode()); os.kill(os.getpid(), 9)"
    with log.open("a") as file:
        subprocess.run([sys.executable, "-S", "-c", write_and_die, text], stdout=file)


def check_watchdog(watch, log, logged, cause):
    """What holds of a watchdog: it quotes an error that nothing took back, and says nothing of anything else."""
    log.write_text(COMPLETED + REFUSED)
    check, patient = watch(log, 0.2), watch(log, 60.0)
    assert words_of(check, 0.3) is None, "an error was logged before the watchdog began"
    write(log, HARMLESS)
    assert words_of(check, 0.3) is None, "nothing is wrong with the engine"
    write(log, logged + COMPLETED)
    assert words_of(check, 0.3) is None, "a request was completed after the error"
    write(log, logged[: len(logged) // 2])
    with suppress(RuntimeError):
        check()
    write(log, logged[len(logged) // 2 :])
    assert cause in str(words_of(check, 3.0)), "the engine's words are missing"
    assert words_of(patient, 0.4) is None, "sooner than after the seconds that were asked for"


@pytest.mark.guards("stalled-rollout")
@pytest.mark.parametrize("name", LOGGED)
def test_watchdog_quotes_a_dead_process(subject, tmp_path, name):
    check_watchdog(subject, tmp_path / "server.log", *LOGGED[name])


@pytest.mark.guards("stalled-rollout")
def test_watchdog_is_silent_while_rollouts_come(vllm_server, subject):
    import openai

    with pytest.raises(openai.BadRequestError):  # of an earlier run
        complete(vllm_server, TOO_LONG, 1)
    check = subject(vllm_server.log_path, PATIENCE)
    orchestrate(vllm_server, 8, check)
    assert words_of(check, 1.5 * PATIENCE) is None


@pytest.mark.guards("stalled-rollout")
def test_watchdog_ends_the_run(vllm_server, subject):
    check = subject(vllm_server.log_path, PATIENCE)
    vllm_server.wait_until_ready()
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"400 Bad Request|maximum context length"):
        orchestrate(vllm_server, 1, check, TOO_LONG)
    assert time.monotonic() - begun < PATIENCE + 2.5


@pytest.mark.reproduces("stalled-rollout")
def test_orchestrator_waits_for_ever(vllm_server):
    orchestrate(vllm_server, MAX_TOKENS)
