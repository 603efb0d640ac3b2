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
    """What git prints to this command in a folder.

    Args:
        folder: In or around a checkout.
        arguments: The command.
        timeout: Seconds that it may take.

    Raises:
        GitError: It failed: what it says of that; or there is no git.
    """
    command = [*_COMMAND, "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
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
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        reason = next((line for line in said if line.startswith(("fatal: ", "error: "))), said[-1])
        raise GitError(f"git {arguments[0]}: {reason}")
    return done.stdout.strip("\n")


def start_git(folder: Path, *arguments: str, output: int, pass_fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """A git command that goes on in a folder, out of the terminal's reach: Ctrl-C is this process' to handle."""
    return subprocess.Popen(
        [*_COMMAND, "-C", str(folder), *arguments],
        env=environ(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def environ() -> dict[str, str]:
    """The environment for git: its words in English, and no other repository than the folder's."""
    return {name: value for name, value in os.environ.items() if name not in _of_a_repository()} | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
    }


@functools.cache
def _of_a_repository() -> frozenset[str]:
    """The variables that point git to one repository: set where this is started from one of its hooks."""
    asked = subprocess.run(["git", "rev-parse", "--local-env-vars"], capture_output=True, text=True, check=True)
    return frozenset(asked.stdout.split())
