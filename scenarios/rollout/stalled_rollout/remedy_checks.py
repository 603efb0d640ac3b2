"""The watchdog quotes an error that nothing took back, and says nothing of anything else."""

import subprocess
import sys
from contextlib import suppress

import pytest

from pytest_rlregress.scenarios.rollout.stalled_rollout.test_stalled_rollout import words_of

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


def write(log, text):
    """Let a process that dies of SIGKILL at once write to the log."""
    write_and_die = "import os, sys; os.write(1, sys.argv[1].encode()); os.kill(os.getpid(), 9)"
    with log.open("a") as file:
        subprocess.run([sys.executable, "-S", "-c", write_and_die, text], stdout=file)


def check_watchdog(watch, log, logged, cause):
    """What holds of a watchdog: it quotes an error that nothing took back, and says nothing of anything else."""
    log.write_text(COMPLETED + REFUSED)
    check, patient = watch(log, 0.1), watch(log, 3600.0)
    assert words_of(check, 0.2) is None, "an error was logged before the watchdog began"
    write(log, HARMLESS)
    assert words_of(check, 0.2) is None, "nothing is wrong with the engine"
    write(log, logged + COMPLETED)
    assert words_of(check, 0.2) is None, "a request was completed after the error"
    write(log, logged[: len(logged) // 2])
    with suppress(RuntimeError):
        check()
    write(log, logged[len(logged) // 2 :])
    assert cause in str(words_of(check, 0.2)), "the engine's words are missing"
    assert words_of(patient, 0.2) is None, "sooner than after the seconds that were asked for"


@pytest.mark.parametrize("name", LOGGED)
def test_watchdog_quotes_a_dead_process(subject, tmp_path, name):
    check_watchdog(subject, tmp_path / "server.log", *LOGGED[name])
