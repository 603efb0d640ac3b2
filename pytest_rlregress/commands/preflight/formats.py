"""Read configuration files, YAML and TOML, each with the line of every key; and overrides."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_rlregress.util.nested import walk

UNKNOWN = "???"  # as OmegaConf writes a value that is missing
REMOVED = object()  # the value of a key that an override like ~trainer.logger takes away


# Hydra needs no blank behind the colon of {key:value}.
_HYDRAS_KEY = re.compile(r"([{,]\s*[\w.-]+):(?=\S)")


class ConfigError(Exception):
    """A configuration that cannot be read."""


@dataclass(frozen=True)
class ConfigPosition:
    """A line of a file, or an argument as it was given, or the environment."""

    file: str | None = None
    line: int | None = None
    argument: str | None = None

    def __str__(self) -> str:
        """As compilers write it: ``run.yaml:12``."""
        return f"{self.file}:{self.line}" if self.line else self.file or f"{self.argument}"


@dataclass
class ConfigPart:
    """What one file or one argument says.

    Attributes:
        signs: Of overrides, by key: how Hydra is told, ``""``, ``+``, ``++`` or ``~``.
        program: What a command starts, such as ``trl grpo`` or ``verl.trainer.main_ppo``.
        interpreter: With which ``python -m`` starts it, as it is written; "" where nothing of the kind does.
        answer: What the command's program says of its configuration; empty where it wasn't asked, or couldn't be.
        not_composed: Why the command's program couldn't be asked.
    """

    file: str | None = None
    trainer: str | None = None
    tree: dict[str, Any] = field(default_factory=dict)
    places: dict[str, ConfigPosition] = field(default_factory=dict)
    exports: dict[str, str] = field(default_factory=dict)
    signs: dict[str, str] = field(default_factory=dict)
    program: str = ""
    interpreter: str = ""
    answer: dict[str, Any] = field(default_factory=dict)
    not_composed: str = ""


# A flat file with one of these holds TRL's or transformers' arguments, as does a command with two of these options.
TRL_KEYS = {
    *("model_name_or_path", "dataset_name", "datasets", "output_dir", "per_device_train_batch_size", "learning_rate"),
    *("num_generations", "max_completion_length", "use_vllm", "vllm_mode", "num_train_epochs", "use_peft"),
}
_ACCELERATE_KEYS = {"compute_environment", "distributed_type", "num_processes"}


def read_yaml(file: Path) -> ConfigPart:
    """Read verl's YAML, TRL's, or accelerate's, which then is below the key ``accelerate``.

    Raises:
        ConfigError: It holds no table.
        OSError, yaml.YAMLError: Not readable, malformed.
    """
    tree, places = _yaml(file.read_text(encoding="utf-8-sig"), str(file))
    if tree.keys() & TRL_KEYS:
        variables = tree.pop("env", None)
        exports = {name: str(value) for name, value in variables.items()} if isinstance(variables, dict) else {}
        places |= {name: places[f"env.{name}"] for name in exports}
        return ConfigPart(str(file), "trl", tree, places, exports)
    if tree.keys() & _ACCELERATE_KEYS:
        places = {f"accelerate.{name}": place for name, place in places.items()}
        return ConfigPart(str(file), "trl", {"accelerate": tree}, places)
    return ConfigPart(str(file), "verl", tree, places)


def read_toml(file: Path) -> ConfigPart:
    """Read prime-rl's TOML.

    Raises:
        OSError, ValueError: Not readable, malformed.
    """
    return ConfigPart(str(file), "prime-rl", *_toml(file.read_text(encoding="utf-8-sig"), str(file)))


def read_override(argument: str) -> ConfigPart:
    """Read an argument as Hydra takes it: ``key=value``, ``+key=value``, ``++key=value`` or ``~key``."""
    found = re.fullmatch(r"(~|\+{0,2})(.*?)(?:=(.*))?", argument, re.DOTALL)
    assert found
    sign, name, value = found[1], found[2], found[3] or ""
    return ConfigPart(
        tree=_nested(name, REMOVED if sign == "~" else value_of(value)),
        places={name: ConfigPosition(argument=argument)},
        signs={name: sign},
    )


def merge(tree: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Merge ``above`` into ``tree``, over what that has; a list is replaced as a whole."""
    for name, value in above.items():
        if value is REMOVED:
            tree.pop(name, None)
        elif isinstance(value, Mapping):
            below = tree.get(name)
            tree[name] = below if isinstance(below, dict) else {}
            merge(tree[name], value)
        else:
            tree[name] = value


def _nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def value_of(value: str) -> Any:
    """Read a value of an override, which Hydra writes much as YAML does."""
    try:
        return yaml.safe_load(_HYDRAS_KEY.sub(r"\1: ", value) if value.startswith("{") else value)
    except yaml.YAMLError:
        return value


def _yaml(text: str, file: str) -> tuple[dict[str, Any], dict[str, ConfigPosition]]:
    loader = yaml.SafeLoader(text)
    loader.name = file
    try:
        root = loader.get_single_node()
        places = {key: ConfigPosition(file, line) for key, line in _yaml_lines(root, loader)}
        tree = loader.construct_document(root) if root else {}
    finally:
        loader.dispose()
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: holds no table of keys")
    return tree, places


def _yaml_lines(node: yaml.Node | None, loader: yaml.SafeLoader, key: str = "") -> Iterator[tuple[str, int]]:
    entries: list[tuple[str, yaml.Node, yaml.Node]] = []  # name, its node, value
    if isinstance(node, yaml.MappingNode):
        names = [name.value for name, _ in node.value]
        for name, _ in node.value:
            if names.count(name.value) > 1:  # which OmegaConf refuses, and PyYAML does not
                raise yaml.MarkedYAMLError(f"the key {name.value} is given twice", problem_mark=name.start_mark)
        loader.flatten_mapping(node)  # what anchors bring in
        entries = [(name.value, name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(str(number), value, value) for number, value in enumerate(node.value)]
    for name, node, value in entries:
        below = f"{key}.{name}" if key else name
        yield below, node.start_mark.line + 1
        yield from _yaml_lines(value, loader, below)


def _toml(text: str, file: str) -> tuple[dict[str, Any], dict[str, ConfigPosition]]:
    """Read TOML with tomllib, which keeps no lines: a key stands where the file, read up to there, first has it."""
    tree = tomllib.loads(text)
    lines = text.split("\n")
    places: dict[str, ConfigPosition] = {}
    begin = 0
    for end in range(1, len(lines) + 1):
        try:
            so_far = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:  # in the middle of a list or a text of several lines
            continue
        for key, _ in walk(so_far):
            places.setdefault(key, ConfigPosition(file, begin + 1))
        begin = end
    return tree, places
