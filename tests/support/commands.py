"""The commands of the launch scripts beside the other configurations, as a shell hands them over."""

from __future__ import annotations

import shlex

from installed import TESTS

CONFIGS = TESTS / "configs"
TOY, LORA = CONFIGS / "verl-rtx-5070-ti-0.5b.sh", CONFIGS / "trl-4xh100-lora-7b.sh"
START = "python3 -m verl.trainer.main_ppo"


def command_of(script):
    """Return the words of a script's last command, which has no variables."""
    lines = script.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return shlex.split(lines[-1])


def with_start(start, *overrides):
    """Return the toy run's command with another start, and with more overrides."""
    return [*shlex.split(start), *command_of(TOY)[3:], *overrides]
