"""Remedies for Ray clusters: which process died and of what, whether CUDA works."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from pytest_rlregress.logs import ray

__all__ = ["blame", "probe_cuda"]

# raylet.err, of a raylet that ended itself; until 2023 without the agent's name.
_AGENT_FAILED = re.compile(
    r"The raylet exited immediately because (?:the Ray agent failed|one Ray agent failed, agent_name = (\w+))"
)
# A trainer's worker imports tensordict, which asks torch for CUDA.
_CUDA = "import torch, tensordict; print(torch.cuda.is_available())"


def blame(log_dir: Path) -> list[str]:
    """Say which processes of a Ray session died, and of what: Ray's exceptions guess, its logs know.

    Args:
        log_dir: The session's ``logs`` folder, of a session that runs or that ended, such as
            ``/tmp/ray/session_latest/logs``.

    Returns:
        A sentence for each, raylets first, for their workers die with them: a raylet whose agent failed, a daemon or
        worker that a signal ended, one that is gone and left no word. Empty if nothing died.

    Raises:
        ValueError: There is no such folder.
    """
    if not log_dir.is_dir():
        raise ValueError(f"{log_dir} is no folder: wanted is the logs folder of a Ray session")
    told = []
    for log in sorted(log_dir.glob("raylet*.err")):
        found = _AGENT_FAILED.search(log.read_text(errors="replace"))
        if found:
            told.append(f"Ray's raylet ({log.name}) exited because its {found[1] or 'agent'} failed")
    logs = [log for log in sorted(log_dir.iterdir()) if ray.is_log(log)]
    told += [death.message for death in ray.deaths(logs)]
    return sorted(told, key=lambda sentence: "raylet" not in sentence)


def probe_cuda(code: str = _CUDA, timeout: float = 120.0) -> bool:
    """Ask in a process of its own whether CUDA can be used, before anything depends on the answer.

    A driver, toolkit and torch that do not fit can end the process that asks, and a Ray worker's end tells no cause.

    Args:
        code: Python that asks and prints the answer last, ``True`` or ``False``; by default it imports torch and
            tensordict as a trainer's worker does. It runs in this interpreter's environment.
        timeout: Seconds that it may take.

    Returns:
        Whether the answer was ``True``.

    Raises:
        RuntimeError: The process died, with the signal's name and its last words, failed, did not end in time, or
            gave no answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the CUDA probe did not end in {timeout:g} s: {code!r}") from None
    answer = done.stdout.split()[-1:]
    if done.returncode == 0 and answer in (["True"], ["False"]):
        return answer == ["True"]
    if done.returncode < 0:
        end = f"died of {signal.Signals(-done.returncode).name}"
    else:
        end = f"failed with exit code {done.returncode}" if done.returncode else "gave no answer"
    raise RuntimeError(f"the CUDA probe {end}; do not start training with this stack.\n{done.stderr.strip()[-2000:]}")
