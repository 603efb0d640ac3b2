"""Parse the words of a command that starts a trainer: its program, Hydra's overrides, TRL's options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pytest_rlregress.commands.preflight.config import (
    ConfigError,
    ConfigPosition,
    PlannedRun,
    read_file,
    read_override,
)

# A dot is in every key of verl's that matters here; its configuration groups have none.
_KEY = r"(?:[A-Za-z_]\w*(?:\.[\w-]+)+|model_engine)"
_OVERRIDE = re.compile(rf"\+{{0,2}}{_KEY}=.*|~{_KEY}(?:=.*)?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"[\w.+-]+")
_WRAPPERS = ("env", "nohup", "exec", "time")
_STARTS_PYTHON = re.compile(r"python[\d.]*|trl|accelerate|torchrun|\S+\.py")


@dataclass
class ParsedCommand:
    """A command, as far as its words say.

    Attributes:
        run: Its program, the variables that ``env`` sets, and where each was written.
        words: From its interpreter, launcher or script on.
        interpreter: What runs it, if not its first word.
        overrides: Those that Hydra takes.
    """

    run: PlannedRun
    words: list[str]
    interpreter: list[str]
    overrides: list[PlannedRun]


def split_assignments(command: Sequence[str]) -> tuple[PlannedRun, list[str]]:
    """Split what sets variables off a command; return a run with them, and the words from the program on."""
    run = PlannedRun("verl")
    words = [*command]
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.fullmatch(words[0])):
        word = words.pop(0)
        if found := _ASSIGNMENT.fullmatch(word):
            run.environ[found[1]] = found[2]
            run.places[found[1]] = ConfigPosition(argument=word)
    return run, words


def parse_command(command: Sequence[str]) -> ParsedCommand:
    """Parse the words of a command that starts a trainer.

    Raises:
        ConfigError: It starts none of the programs that start trainers.
    """
    run, words = split_assignments(command)
    at = next((at for at, word in enumerate(words) if _STARTS_PYTHON.fullmatch(Path(word).name)), None)
    if at is None:
        raise ConfigError(
            f"{' '.join(command)}: starts none of python, accelerate, torchrun and trl, and isn't a shell's script"
        )
    interpreter = ["uv", "run", "--no-sync", *words[2:at], "python"] if words[:2] == ["uv", "run"] else []
    starts_itself, words = at == 0, words[at:]
    run.program = " ".join(words[:2])
    if "-m" in words[:-1]:
        at = words.index("-m") + 1
        run.program = words[at]
        if starts_itself and Path(words[0]).name.startswith("python"):
            run.places[run.program] = ConfigPosition(argument=" ".join(words[: at + 1]))
            run.interpreter = words[0]
    overrides = [read_override(word) for word in words if _OVERRIDE.fullmatch(word)]
    return ParsedCommand(run, words, interpreter, overrides)


def read_options(run: PlannedRun, words: Sequence[str]) -> None:
    """Read options as argparse takes them, and below them the file of ``--config``."""
    given: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, is_given, value = word[2:].partition("=")
            name = name.replace("-", "_")
            given[name] = [value] if is_given else []
        elif name:
            given[name].append(word)
    if files := given.pop("config", []):
        in_file = read_file(Path(files[0]))
        in_file.trainer = "trl"
        run.lay_over(in_file)
    for name, values in given.items():
        texts = [yaml.safe_load(value) if _PLAIN.fullmatch(value) else value for value in values]
        run.tree[name] = texts[0] if len(texts) == 1 else texts or True
        run.places[name] = ConfigPosition(argument=" ".join([f"--{name}", *values]))
