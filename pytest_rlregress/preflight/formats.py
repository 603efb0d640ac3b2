"""Read configuration files: YAML, TOML and launch scripts, each with the line of every key."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_rlregress.util.nested import walk

REMOVED = object()  # the value of a key that an override like ~trainer.logger takes away


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


@dataclass(frozen=True)
class LaunchCommand:
    """A line ``python -m verl.…`` of a launch script.

    Attributes:
        interpreter: As it is written, its variables expanded.
        module: Dotted.
        unknown: What stands before it and may change which interpreter that is, such as ``source``; else "".
    """

    interpreter: str
    module: str
    unknown: str


@dataclass(frozen=True)
class ConfigPart:
    """What one file or one argument says; ``commands`` by the key that has their place."""

    file: str | None = None
    trainer: str | None = None
    tree: dict[str, Any] = field(default_factory=dict)
    places: dict[str, ConfigPosition] = field(default_factory=dict)
    exports: dict[str, str] = field(default_factory=dict)
    commands: dict[str, LaunchCommand] = field(default_factory=dict)


def read_file(file: Path, environ: Mapping[str, str]) -> ConfigPart:
    """Read a file by its suffix.

    Raises:
        ConfigError: Missing, not readable, of another suffix, or malformed.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix in (".yaml", ".yml"):
            return ConfigPart(str(file), "verl", *_yaml(text, str(file)))
        if file.suffix == ".toml":
            return ConfigPart(str(file), "prime-rl", *_toml(text, str(file)))
        if file.suffix == ".sh":
            return ConfigPart(str(file), "verl", *_script(text, str(file), environ))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error
    raise ConfigError(f"{file}: a configuration is YAML (.yaml, .yml), TOML (.toml) or a launch script (.sh)")


def read_override(argument: str) -> ConfigPart:
    """Read an argument as Hydra takes it, ``key=value``, ``+key=value`` or ``~key``; or ``trainer=train.toml``.

    The last is how prime-rl's ``--trainer @ train.toml`` is written here: what the file holds belongs below that key.
    """
    key, _, value = argument.lstrip("+").partition("=")
    if value.endswith(".toml") and key in ("trainer", "orchestrator", "inference"):
        part = read_file(Path(value), {})
        places = {f"{key}.{name}": place for name, place in part.places.items()}
        return ConfigPart(part.file, part.trainer, {key: part.tree}, places)
    name = key.removeprefix("~")
    return ConfigPart(
        tree=_nested(name, _override_value(value) if name == key else REMOVED),
        places={name: ConfigPosition(argument=argument)},
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


def _override_value(value: str) -> Any:
    """Read a value of an override, which Hydra writes much as YAML does."""
    try:
        return yaml.safe_load(value)
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


# A dot is in every key of verl's that matters here, and in no name of a shell variable.
_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_]\w*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_STARTS_VERL = re.compile(r"(?:(?:nohup|exec|time) )?(\S+)(?: -[a-zA-Z]+)*? -m (verl(?:\.\w+)+)(?: .*)?", re.DOTALL)
_CHANGES_THE_INTERPRETER = ("source", ".", "conda", "mamba", "module", "cd", "pushd")
UNKNOWN = "???"  # as OmegaConf writes a value that is missing


def _script(
    text: str, file: str, environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, ConfigPosition], dict[str, str], dict[str, LaunchCommand]]:
    """Read the overrides that a launch script hands to verl, the variables that it exports, and how it starts verl.

    Every line counts as run, from top to bottom. What only a shell could find, such as a command's output, is unknown.
    """
    tree: dict[str, Any] = {}
    places: dict[str, ConfigPosition] = {}
    variables: dict[str, str] = {}
    exported: set[str] = set()
    started: dict[str, LaunchCommand] = {}
    unknown = ""
    for line, words in _commands(text):
        command = next((word for word in words if not _ASSIGNMENT.fullmatch(word)), "")
        unknown = command if command in _CHANGES_THE_INTERPRETER else unknown
        if found := _STARTS_VERL.fullmatch(" ".join(word for word in words if not _ASSIGNMENT.fullmatch(word))):
            interpreter = _expand(found[1], {**environ, **variables})
            if Path(interpreter).name.startswith("python") or interpreter == UNKNOWN:
                started[found[2]] = LaunchCommand(interpreter, found[2], unknown)
                places[found[2]] = ConfigPosition(file, line)
        for word in words:
            if found := _ASSIGNMENT.fullmatch(word):
                variables[found[1]] = _expand(found[2], {**environ, **variables})
                places[found[1]] = ConfigPosition(file, line)
                exported |= {found[1]} if command else set()  # export A=1, or A=1 python …
            elif found := _OVERRIDE.fullmatch(word):
                value = _expand(found[3], {**environ, **variables})
                merge(tree, _nested(found[2], REMOVED if found[1] == "~" else _override_value(value)))
                places[found[2]] = ConfigPosition(file, line)
            elif command == "export":
                exported.add(word)
            elif command == "unset":
                variables[word] = ""
    return tree, places, {name: variables[name] for name in exported & variables.keys()}, started


def _commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the words of every line, with its number; lines that one pair of quotes spans count as one."""
    lines = [line.removesuffix("\\") for line in text.splitlines()]
    begin = 0
    while begin < len(lines):
        if here_document := re.search(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)", lines[begin]):
            while begin < len(lines) - 1 and lines[begin].strip() != here_document[1]:
                begin += 1
        for end in range(begin + 1, min(begin + 50, len(lines)) + 1):
            try:
                words = shlex.split("\n".join(lines[begin:end]), comments=True)
            except ValueError:  # no closing quotation, yet
                continue
            yield begin + 1, [word.rstrip(";") for word in words]
            begin = end
            break
        else:
            begin += 1


_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})")
_NOT_HYDRAS = re.compile(r"`|\$(?!\{[\w.]*\.)")


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """Expand a word as a shell does; a variable that is unset or empty becomes what Hydra's language has for that."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return variables.get(name) or (f"${{oc.env:{name},''}}" if found[3] is None else found[3])

    expanded = word
    for _ in range(5):  # from the inside out: a default may hold variables
        expanded = _VARIABLE.sub(value, expanded)
    return UNKNOWN if UNKNOWN in expanded or _NOT_HYDRAS.search(expanded) else expanded
