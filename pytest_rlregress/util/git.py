"""Ask git about a folder, whatever the environment says of other repositories."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

# A hook is the user's, for the user's own checkouts; without the optional locks a command that asks changes nothing.
_COMMAND = ("git", "--no-optional-locks", "-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


class GitError(Exception):
    """What was asked of a checkout cannot be: one sentence that says what, and what to do."""


def git(folder: Path, *arguments: str, timeout: float | None = None) -> str:
    """Run a git command in a folder; returns what it prints.

    Args:
        folder: In or around a checkout.
        arguments: The command.
        timeout: Seconds that it may take.

    Raises:
        GitError: It failed: what it says of that; or there is no git.
    """
    done = run_git(folder, *arguments, timeout=timeout)
    if done.returncode:
        raise GitError(f"git {arguments[0]}: {reason(done)}")
    return done.stdout.strip("\n")


def run_git(folder: Path, *arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a git command in a folder, whatever its exit code.

    Raises:
        GitError: There is no git, or it takes longer than ``timeout`` seconds.
    """
    try:
        return subprocess.run(
            [*_COMMAND, "-C", str(folder), *arguments],
            env=environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout,
        )
    except FileNotFoundError:
        raise GitError("git was not found on the PATH") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git {arguments[0]}: not done after {timeout:g} s") from None


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line in which git says why it failed."""
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[-1])


def environ() -> dict[str, str]:
    """Return the environment for git: its words in English, and no other repository than the folder's."""
    return {name: value for name, value in os.environ.items() if name not in _of_a_repository()} | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
    }


@functools.cache
def _of_a_repository() -> frozenset[str]:
    """Return the variables that point git to one repository: set where this is started from one of its hooks."""
    asked = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    return frozenset(asked.stdout.split())
