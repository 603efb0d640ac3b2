"""What a run runs on: the stack, the hardware and the checkout. docs/record.md has the keys."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlregress import locks
from pytest_rlregress.stack import COMPONENTS

if TYPE_CHECKING:
    from pytest_rlregress.harness import Harness


def found(run: Harness, root: Path) -> dict[str, Any]:
    """All of it, in values of JSON; root is pytest's root folder."""
    return {"stack": _stack(run), "hardware": _hardware(run), "git": _git(root)}


def _stack(run: Harness) -> dict[str, Any]:
    """What is installed: all of it, as the lines that install it again, and the components by version."""
    return {
        "requirements": locks.installed().text.splitlines(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: run.stack.versions[name] for name in COMPONENTS if name in run.stack.versions},
    }


def _hardware(run: Harness) -> dict[str, Any]:
    """The profile of the run, and the GPUs that CUDA would see."""
    try:
        profile = run.profile.id
    except pytest.UsageError:  # without --hw a run goes on on a card that no profile knows
        profile = None
    devices = [{"name": gpu.name, "memory_bytes": gpu.memory_bytes, "uuid": gpu.uuid} for gpu in run.machine.gpus]
    return {"profile": profile, "driver": run.machine.driver, "devices": devices}


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit of a checkout, and whether tracked files differ from it; None where git knows of none."""

    def ask(*command: str) -> str:
        asked = ["git", "--no-optional-locks", "-C", str(folder), *command]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
