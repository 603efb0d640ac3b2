"""Read a configuration as the trainer will see it, and where each of its keys was written: what rules are given."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_rlregress.hardware.profiles import Profile
from pytest_rlregress.preflight.formats import (
    UNKNOWN,
    ConfigError,
    ConfigPosition,
    LaunchCommand,
    merge,
    read_file,
    read_override,
)
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.nested import walk

# Of each trainer the sections that a run cannot do without: a file with none of them is something else.
SECTIONS = {
    "verl": ("actor_rollout_ref", "data", "trainer", "critic"),
    "prime-rl": ("trainer", "orchestrator", "inference", "model"),
}


@dataclass(frozen=True)
class Config:
    """A run's configuration: files and overrides merged, the later over the earlier.

    Attributes:
        trainer: ``verl`` or ``prime-rl``.
        places: By dotted key, and by name for a variable that a launch script sets.
        environ: The run's environment variables, as far as they are known here.
        commands: How a launch script starts the trainer, by the key that has its place.
    """

    trainer: str
    files: tuple[str, ...]
    tree: dict[str, Any]
    places: Mapping[str, ConfigPosition]
    environ: Mapping[str, str]
    commands: Mapping[str, LaunchCommand]

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key: ``default`` if it is not given, None if it is given but not known here.

        References to other keys (``${data.max_prompt_length}``) are followed; what else is interpolated is not known.
        """
        for _ in range(10):  # of which any sane chain of references has fewer
            value: Any = self.tree
            for name in key.split("."):
                if not isinstance(value, Mapping) or name not in value:
                    return default
                value = value[name]
            reference = re.fullmatch(r"\$\{([A-Za-z_][\w.]*)\}", value) if isinstance(value, str) else None
            if not reference:
                break
            key = reference[1]
        return None if isinstance(value, str) and ("${" in value or value == UNKNOWN) else value

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return the value of a dotted key, if it is a number."""
        value = self.get(key, default)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def leaves(self, below: str = "") -> Iterator[tuple[str, Any]]:
        """Return every value that is no table and no list, by dotted key; entries of a list by number."""
        value = self.get(below) if below else self.tree
        return ((key, one) for key, one in [(below, value), *walk(value, below)] if not isinstance(one, (dict, list)))

    def place(self, key: str) -> ConfigPosition:
        """Return where a key was written; for one that was left out, where its table is."""
        if key not in self.places and key in self.environ:
            return ConfigPosition(argument="environment")
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        return self.places[key] if key else ConfigPosition(self.files[0])

    def write(self, key: str, value: str | float) -> str:
        """Return what to write for a key, in the language of the place where it stands."""
        place = self.place(key)
        name = key.rpartition(".")[2]
        if place.file is None or place.file.endswith(".sh"):
            return f"{key}={value}"
        if self.trainer == "verl":
            return f"{name}: {value}"
        return f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"


@dataclass(frozen=True)
class RuleContext:
    """The run that is to be started.

    Attributes:
        memory_bytes: Of one card; 0 where there is none.
        packages_unknown: Why what is installed here says nothing about the run; "" where it does.
        prompt_tokens: The longest prompt, if it was given.
    """

    config: Config
    profile: Profile
    memory_bytes: int
    packages_unknown: str
    prompt_tokens: int | None

    @property
    def verl(self) -> bool:
        """Whether verl's names hold; else prime-rl's do."""
        return self.config.trainer == "verl"


@dataclass(frozen=True)
class Unchecked:
    """Why a rule could not check something."""

    why: str


Rule = Callable[[RuleContext], Iterator[Advice | Unchecked]]


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read files and ``key=value`` overrides in the order given.

    Raises:
        ConfigError: A file is missing, unreadable or of another kind; files of two trainers; of none of the trainers.
    """
    parts = [read_override(one) if _is_override(one) else read_file(Path(one), environ) for one in arguments]
    files = tuple(dict.fromkeys(file for part in parts if (file := part.file)))
    if not files:
        raise ConfigError(f"no file among the arguments: {' '.join(arguments)}")
    trainers = {part.trainer for part in parts if part.trainer}
    if len(trainers) > 1:
        raise ConfigError(f"{', '.join(files)}: TOML is prime-rl's, YAML and launch scripts are verl's. Check one run.")
    trainer = trainers.pop()
    tree: dict[str, Any] = {}
    places: dict[str, ConfigPosition] = {}
    exports: dict[str, str] = {}
    commands: dict[str, LaunchCommand] = {}
    for part in parts:
        merge(tree, part.tree)
        if part.file is None:  # an override replaces all that stood below its key
            places = {
                key: place for key, place in places.items() if not key.startswith(tuple(f"{k}." for k in part.places))
            }
        places |= part.places
        exports |= part.exports
        commands |= part.commands
    if not tree.keys() & set(SECTIONS[trainer]):
        raise ConfigError(
            f"{', '.join(files)}: no configuration of {trainer}, whose sections are {', '.join(SECTIONS[trainer])}"
        )
    return Config(trainer, files, tree, places, {**environ, **exports}, commands)


def _is_override(argument: str) -> bool:
    return ("=" in argument or argument.startswith("~")) and not os.path.exists(argument)
