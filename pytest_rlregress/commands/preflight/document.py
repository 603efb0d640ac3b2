"""Read a configuration as the trainer will see it, and where each of its keys was written: what rules are given."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from pytest_rlregress.commands.preflight.command import read_command
from pytest_rlregress.commands.preflight.formats import (
    TRL_KEYS,
    UNKNOWN,
    ConfigError,
    ConfigPart,
    ConfigPosition,
    merge,
    read_override,
    read_toml,
    read_yaml,
    value_of,
)
from pytest_rlregress.commands.preflight.schema import Schema, known_schema, schema_of_answer, schema_of_tree
from pytest_rlregress.commands.preflight.trainers import TRAINERS, TrainerKeys
from pytest_rlregress.hardware.profiles import Profile
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.util.nested import walk


@dataclass
class Config(ConfigPart):
    """A run's configuration: its command, files and overrides merged, the later over the earlier.

    Attributes:
        files: All that were read.
        environ: The run's environment variables, as far as they are known here.
    """

    trainer: str = ""
    files: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)

    @cached_property
    def schema(self) -> Schema:
        """The keys and values that the trainer takes."""
        if self.answer:
            return schema_of_answer(self.answer)
        return (
            known_schema(self.trainer, self.not_composed)
            if self.not_composed
            else schema_of_tree(self.trainer, self.tree)
        )

    @property
    def refused(self) -> Sequence[str]:
        """The keys that the trainer refuses in the command."""
        refused: Sequence[str] = self.answer.get("refused", ())
        return refused

    @property
    def written(self) -> Mapping[str, Any]:
        """The configuration with its references as they are written."""
        written: Mapping[str, Any] = self.answer.get("written", self.tree)
        return written

    @property
    def keys(self) -> TrainerKeys:
        """The trainer's names for what rules ask for."""
        return TRAINERS[self.trainer]

    @property
    def title(self) -> str:
        """What was read: the files, or the program of the command."""
        return ", ".join(self.files) or self.program

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key: ``default`` if it is not given, None if it is given but not known here.

        References to other keys (``${data.max_prompt_length}``, ``${oc.select:data.seed,1}``) and to the environment
        (``${oc.env:NODES}``) are followed; what else is interpolated is not known.
        """
        value = self._followed(key, default)
        return None if _is_unknown(value) else value

    def hides(self, key: str) -> bool:
        """Return whether the value of a dotted key is given and not known here."""
        return _is_unknown(self._followed(key, None))

    def _followed(self, key: str, default: Any) -> Any:
        fallback = None
        for _ in range(10):  # of which any sane chain of references has fewer
            value: Any = self.tree
            for name in key.split("."):
                if not isinstance(value, Mapping) or name not in value:
                    return default
                value = value[name]
            value = self._from_environment(value) if isinstance(value, str) else value
            pattern = r"\$\{(?:oc\.select:)?(\.?[A-Za-z_][\w.]*)(?:,([^{}]*))?\}"
            reference = re.fullmatch(pattern, value) if isinstance(value, str) else None
            if not reference:
                break
            key = f"{key.rpartition('.')[0]}{reference[1]}" if reference[1].startswith(".") else reference[1]
            if reference[2]:
                default = fallback = value_of(reference[2])
        return fallback if value is None else value

    def _from_environment(self, value: str) -> Any:
        """Return what ``${oc.env:NAME}`` stands for, with ``oc.decode`` around it as a number."""
        found = re.fullmatch(r"(\$\{oc\.decode:)?\$\{oc\.env:\s*(\w+)\s*(?:,[^{}]*)?\}(?(1)\}|)", value)
        known = self.environ.get(found[2], "") if found else ""
        return value if not found or not known else value_of(known) if found[1] else known

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return the value of a dotted key, if it is a finite number, not below 0: sizes, lengths, counts, shares."""
        value = self.get(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if is_number and 0 <= value < math.inf else None

    def leaves(self, below: str = "") -> Iterator[tuple[str, Any]]:
        """Return every value that isn't a table and no list, by dotted key; entries of a list by number."""
        value = self.get(below) if below else self.tree
        return ((key, one) for key, one in [(below, value), *walk(value, below)] if not isinstance(one, (dict, list)))

    def place(self, key: str) -> ConfigPosition:
        """Return where a key was written; for a table, its first entry; for what was left out, where its table is."""
        if key not in self.places and key in self.environ:
            return ConfigPosition(argument="environment")
        if key not in self.places and (inside := [one for one in self.places if one.startswith(f"{key}.")]):
            return self.places[inside[0]]
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        whole = ConfigPosition(self.files[0]) if self.files else ConfigPosition(argument=self.program)
        return self.places.get(key, whole)

    def write(self, key: str, value: str | float, like: str = "") -> str:
        """Return what to write for a key, in the language of the place where it stands, or another key does."""
        place = self.place(like or key)
        same_table = not like or like.rpartition(".")[0] == key.rpartition(".")[0]
        name = key.rpartition(".")[2] if same_table else key
        if self.trainer == "trl" and (place.argument or "").startswith(("--", self.program or "--")):
            return f"--{key} {value}"
        if (place.file or "").endswith(".py"):
            if key == "use_peft":
                return "peft_config=LoraConfig()"
            return f"{key}={ {'true': True, 'false': False}.get(str(value), value)!r}"
        if place.file is None:
            return f"{key}={value}"
        if self.trainer != "prime-rl":
            return f"{name}: {value}"
        return f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"


@dataclass(frozen=True)
class RuleContext:
    """The run that is to be started.

    Attributes:
        memory_bytes: Of one card; 0 where there is none.
        packages_unknown: Why what is installed here says nothing about the run; "" where it does.
        prompt_tokens: The longest prompt, if it was given.
        parameters: Of the model, if they were given.
    """

    config: Config
    profile: Profile
    memory_bytes: int
    packages_unknown: str
    prompt_tokens: int | None
    parameters: int | None = None

    @property
    def verl(self) -> bool:
        """Whether verl's names hold."""
        return self.config.trainer == "verl"

    @property
    def trl(self) -> bool:
        """Whether TRL's names hold."""
        return self.config.trainer == "trl"


@dataclass(frozen=True)
class Unchecked:
    """Why a rule could not check something.

    Attributes:
        missing: The keys and options of which a value would let it be checked.
    """

    why: str
    missing: tuple[str, ...] = ()


# A shell reads its own language best: it runs the script, with preflight in the place of the trainer's interpreter.
_BY_SHELL = 'python3() { rlregress preflight --hw=… -- python3 "$@"; }; export -f python3; bash run.sh'
Rule = Callable[[RuleContext], Iterator[Advice | Unchecked]]


def _is_unknown(value: Any) -> bool:
    return isinstance(value, str) and ("${" in value or value == UNKNOWN)


def read(arguments: Sequence[str], environ: Mapping[str, str], command: Sequence[str] = ()) -> Config:
    """Read a command, and over it files and ``key=value`` overrides in the order given.

    Raises:
        ConfigError: A file is missing, unreadable or of another kind; files of two trainers; of none of the trainers.
    """
    parts = [read_command(command, environ)] if command else []
    parts += [_read_argument(one) for one in arguments]
    files = tuple(dict.fromkeys(file for part in parts if (file := part.file)))
    if not files and not command:
        raise ConfigError(
            "no file and no command: write rlregress preflight run.yaml, or rlregress preflight -- COMMAND"
        )
    title = ", ".join(files) or " ".join(command)
    trainers = {part.trainer for part in parts if part.trainer}
    if len(trainers) > 1:
        raise ConfigError(
            f"{title}: of {' and '.join(sorted(trainers))}. TOML is prime-rl's, flat YAML TRL's, other YAML "
            "verl's. Check one run."
        )
    first = parts[0]
    config = Config(trainer=trainers.pop(), files=files, environ={**environ}, program=first.program)
    config.interpreter, config.answer, config.not_composed = first.interpreter, first.answer, first.not_composed
    for part in parts:
        _lay_over(config, part)
    known = config.keys.sections or sorted(TRL_KEYS)
    if not config.tree.keys() & set(known):
        if "accelerate" in config.tree:
            raise ConfigError(f"{title}: accelerate's configuration alone: give TRL's beside it")
        raise ConfigError(f"{title}: no configuration of {config.trainer}, which has some of {', '.join(known)}")
    return config


def _lay_over(config: Config, part: ConfigPart) -> None:
    merge(config.tree, part.tree)
    config.environ |= part.exports
    config.signs = {key: sign for key, sign in config.signs.items() if key not in part.places} | part.signs
    if part.file is None:  # an override replaces all that stood below its key
        replaced = tuple(f"{key}." for key in part.places)
        config.places = {key: place for key, place in config.places.items() if not key.startswith(replaced)}
    config.places |= part.places


def _read_argument(argument: str) -> ConfigPart:
    """Read a file by its suffix, or an override; ``trainer=train.toml`` is prime-rl's ``--trainer @ train.toml``."""
    key, _, value = argument.partition("=")
    if value.endswith(".toml") and key in ("trainer", "orchestrator", "inference"):
        part = _read_file(Path(value))
        places = {f"{key}.{name}": place for name, place in part.places.items()}
        return ConfigPart(part.file, part.trainer, {key: part.tree}, places)
    if ("=" in argument or argument.startswith("~")) and not os.path.exists(argument):
        if argument.startswith("-"):
            raise ConfigError(f"{argument}: an override has no dashes: {argument.lstrip('-')}")
        return read_override(argument)
    return _read_file(Path(argument))


def _read_file(file: Path) -> ConfigPart:
    try:
        if file.suffix in (".yaml", ".yml"):
            return read_yaml(file)
        if file.suffix == ".toml":
            return read_toml(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error
    if not file.exists():
        raise ConfigError(f"{file}: neither a file nor an override (key=value)")
    if file.suffix == ".py":
        raise ConfigError(f"{file}: a script is run up to its trainer: rlregress preflight --hw=… -- python {file}")
    raise ConfigError(
        f"{file}: a configuration is YAML (.yaml, .yml), TOML (.toml) or a launch script's command: {_BY_SHELL}"
    )
