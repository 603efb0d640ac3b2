"""A run's configuration as the trainer will see it, and where each of its keys was written."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_rlregress.commands.preflight.trainers import TRAINERS, Schema, TrainerKeys
from pytest_rlregress.commands.preflight.versions import is_installed, requires_only, specifier_contains
from pytest_rlregress.remedies.advice import Advice
from pytest_rlregress.stack import Stack
from pytest_rlregress.util.coverage import Unchecked as Unchecked
from pytest_rlregress.util.files import read_regular
from pytest_rlregress.util.nested import walk

UNKNOWN = "???"  # as OmegaConf writes a value that is missing
_REMOVED = object()  # the value of a key that an override like ~trainer.logger takes away
# A configuration has some hundred entries.
_MOST_ALIASED, _MOST_BYTES, _MOST_READ_AGAIN = 100_000, 2**63, 100_000
# Hydra needs no blank behind the colon of {key:value}.
_HYDRAS_KEY = re.compile(r"([{,]\s*[\w.-]+):(?=\S)")
# A flat file with one of these holds TRL's or transformers' arguments.
TRL_KEYS = {
    *("model_name_or_path", "dataset_name", "datasets", "output_dir", "per_device_train_batch_size", "learning_rate"),
    *("num_generations", "max_completion_length", "use_vllm", "vllm_mode", "num_train_epochs", "use_peft"),
}
_ACCELERATE_KEYS = {"compute_environment", "distributed_type", "num_processes"}


# A shell reads its own language best: it runs the script, with preflight in the place of the trainer's interpreter.
_BY_SHELL = 'python3() { rlregress preflight --hw=… -- python3 "$@"; }; export -f python3; bash run.sh'


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
class PlannedRun:
    """A run that is to be started: its configuration, and the hardware that it is for.

    A command, each file and each override is read as one of these, and the later ones are laid over the earlier.

    Attributes:
        tree: The values: ``???`` for what is given and not known here.
        written: The same with its references as they are written.
        places: Where each dotted key was written.
        environ: The run's environment variables, as far as they are known here.
        files: All that were read.
        program: What a command starts, such as ``trl grpo`` or ``verl.trainer.main_ppo``.
        words: A command's, from its interpreter, launcher or script on; () where it was run for its configuration.
        interpreter: With which ``python -m`` starts it, as it is written; "" where nothing of the kind does.
        composed: What the command's program says of its configuration; empty where it wasn't asked, or couldn't be.
        not_composed: Why the command's program couldn't be asked.
        schema: The keys and values that the trainer takes.
        hardware: The profile's id.
        card: The profile's title.
        capability: The card's compute capability; None where there is none.
        memory_bytes: Of one card; 0 where there is none.
        packages_unknown: Why what is installed here says nothing about the run; "" where it does.
        prompt_tokens: The longest prompt, if it was given.
        parameters: Of the model, if they were given.
        script: What the launch script came to that starts it; empty without one.
        folder: With what that script wrote.
    """

    trainer: str = ""
    tree: dict[str, Any] = field(default_factory=dict)
    places: dict[str, ConfigPosition] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    program: str = ""
    words: tuple[str, ...] = ()
    interpreter: str = ""
    composed: dict[str, Any] = field(default_factory=dict)
    not_composed: str = ""
    schema: Schema = field(default_factory=Schema)
    written: dict[str, Any] = field(default_factory=dict)
    hardware: str = ""
    card: str = ""
    capability: tuple[int, int] | None = None
    memory_bytes: int = 0
    packages_unknown: str = ""
    prompt_tokens: int | None = None
    parameters: int | None = None
    script: dict[str, Any] = field(default_factory=dict)
    folder: Any = None

    @property
    def verl(self) -> bool:
        """Whether verl's names hold."""
        return self.trainer == "verl"

    @property
    def trl(self) -> bool:
        """Whether TRL's names hold."""
        return self.trainer == "trl"

    @property
    def keys(self) -> TrainerKeys:
        """The trainer's names for what rules ask for."""
        return TRAINERS[self.trainer]

    def is_release(self, package: str, specifier: str) -> bool | None:
        """Return whether a package of the run is of these releases; None if that isn't known here.

        The trainer's own release is the one whose keys are compared. Of other packages it is what is installed, where
        that is the run's, else what the trainer's extra of that name requires.
        """
        if self.schema.source.startswith(f"{package} ") and self.schema.complete:
            return specifier_contains(specifier, self.schema.source.partition(" ")[2])
        if not self.packages_unknown:
            return Stack.installed().satisfies(package, specifier) if is_installed(package) else None
        return requires_only(self.trainer, package, specifier)

    @property
    def title(self) -> str:
        """What was read: the files, or the program of the command."""
        return ", ".join(self.files) or self.program

    @property
    def refused(self) -> list[str]:
        """The keys that the trainer refuses in the command."""
        return list(self.composed.get("refused", ()))

    def lay_over(self, above: PlannedRun) -> None:
        """Merge what another one says over what this one says; a list is replaced as a whole."""
        _merge(self.tree, above.tree)
        self.environ |= above.environ
        if not above.files:  # an override replaces all that stood below its key
            replaced = tuple(f"{key}." for key in above.places)
            self.places = {key: place for key, place in self.places.items() if not key.startswith(replaced)}
        self.places |= above.places
        self.files = tuple(dict.fromkeys([*self.files, *above.files]))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key: ``default`` if it is not given, None if it is given but not known here."""
        value = self._find(key, default)
        return None if _is_unknown(value) else value

    def hides(self, key: str) -> bool:
        """Return whether the value of a dotted key is given and not known here."""
        return _is_unknown(self._find(key, None))

    def _find(self, key: str, default: Any) -> Any:
        value: Any = self.tree
        for name in key.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return default
            value = value[name]
        return value

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

    def sign(self, key: str) -> str | None:
        """Return the sign of the argument that gives a key, ``""``, ``+``, ``++`` or ``~``; None if none gives it."""
        argument = self.places[key].argument if key in self.places else None
        return None if argument is None else argument[: len(argument) - len(argument.lstrip("+~"))]

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


def not_known(*keys: str) -> Unchecked:
    """Return that the values of these keys aren't known here, and that they would let something be checked."""
    return Unchecked(f"{' and '.join(keys)}: not known here", keys)


Rule = Callable[[PlannedRun], Iterable[Advice | Unchecked]]


# Files and overrides


def read_file(file: Path) -> PlannedRun:
    """Read prime-rl's TOML, verl's YAML, TRL's, or accelerate's, which then is below the key ``accelerate``.

    Raises:
        ConfigError: It is missing, unreadable, malformed, or of another kind.
    """
    try:
        if file.suffix == ".toml":
            return _read_toml(file)
        if file.suffix in (".yaml", ".yml"):
            return _read_yaml(file)
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


def _read_yaml(file: Path) -> PlannedRun:
    text = _read_text(file)
    loader = yaml.SafeLoader(text)
    loader.name = str(file)
    try:
        root = loader.get_single_node()
        if root is not None and _count_nodes(root, {}) > len(text) + _MOST_ALIASED:
            raise ConfigError(f"{file}: aliases of aliases: there are more than {_MOST_ALIASED:,} entries in it")
        places = {key: ConfigPosition(str(file), line) for key, line in _find_lines(root, loader)}
        tree = _name_keys(loader.construct_document(root)) if root else {}
    finally:
        loader.dispose()
    if not isinstance(tree, dict):
        raise ConfigError(f"{file}: holds no table of keys")
    found = PlannedRun("verl", tree, places, files=(str(file),))
    if tree.keys() & TRL_KEYS:
        found.trainer = "trl"
        if isinstance(variables := tree.pop("env", None), dict):
            found.environ = {name: str(value) for name, value in variables.items()}
            places |= {name: places[f"env.{name}"] for name in found.environ}
    elif tree.keys() & _ACCELERATE_KEYS:
        found.trainer, found.tree = "trl", {"accelerate": tree}
        found.places = {f"accelerate.{name}": place for name, place in places.items()}
    return found


def _find_lines(node: yaml.Node | None, loader: yaml.SafeLoader, key: str = "") -> Iterator[tuple[str, int]]:
    """Yield every dotted key of a YAML document with its line."""
    entries: list[tuple[str, yaml.Node, yaml.Node]] = []  # name, its node, value
    if isinstance(node, yaml.MappingNode):
        names = [name.value for name, _ in node.value]
        for name, _ in node.value:
            if names.count(name.value) > 1:  # which OmegaConf refuses, and PyYAML does not
                raise yaml.MarkedYAMLError(f"the key {name.value} is given twice", problem_mark=name.start_mark)
        loader.flatten_mapping(node)  # what anchors bring in
        entries = [(_check_key(name), name, value) for name, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(str(number), value, value) for number, value in enumerate(node.value)]
    for name, node, value in entries:
        below = f"{key}.{name}" if key else name
        yield below, node.start_mark.line + 1
        yield from _find_lines(value, loader, below)


def _read_text(file: Path) -> str:
    return read_regular(file).decode("utf-8-sig")


def _count_nodes(node: yaml.Node, counts: dict[int, int]) -> int:
    """Count the nodes of a YAML document, each as often as an alias names it."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in counts:
        counts[id(node)] = _MOST_BYTES  # for a node that holds itself
        is_table = isinstance(node, yaml.MappingNode)
        inside = [one for pair in node.value for one in pair] if is_table else node.value
        counts[id(node)] = 1 + sum(_count_nodes(one, counts) for one in inside)
    return counts[id(node)]


def _check_key(node: yaml.Node) -> str:
    """Return a key as it is written; raise an error for one that no trainer can have: null, a date, a list."""
    if isinstance(node, yaml.ScalarNode) and node.tag.rpartition(":")[2] in ("str", "int", "float", "bool", "merge"):
        return str(node.value)
    raise yaml.MarkedYAMLError("a key is a text: put it in quotes", problem_mark=node.start_mark)


def _name_keys(value: Any) -> Any:
    """Return a tree with its keys as texts; YAML makes numbers and truth values of some."""
    if isinstance(value, dict):
        return {str(key): _name_keys(one) for key, one in value.items()}
    return [_name_keys(one) for one in value] if isinstance(value, list) else value


def _read_toml(file: Path) -> PlannedRun:
    """Read TOML with tomllib, which keeps no lines: a key stands where the file, read up to there, first has it."""
    text = _read_text(file)
    found = PlannedRun("prime-rl", tomllib.loads(text), files=(str(file),))
    lines, begin = text.split("\n"), 0
    for end in range(1, len(lines) + 1) if len(text) < _MOST_READ_AGAIN else ():
        try:
            so_far = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:  # in the middle of a list or a text of several lines
            continue
        for key, _ in walk(so_far):
            found.places.setdefault(key, ConfigPosition(str(file), begin + 1))
        begin = end
    return found


def read_override(argument: str) -> PlannedRun:
    """Read an argument as Hydra takes it: ``key=value``, ``+key=value``, ``++key=value`` or ``~key``."""
    key, _, text = argument.lstrip("+~").partition("=")
    value: Any = _REMOVED
    if not argument.startswith("~"):
        try:
            value = yaml.safe_load(_HYDRAS_KEY.sub(r"\1: ", text) if text.startswith("{") else text)
        except yaml.YAMLError:
            value = text
    for part in reversed(key.split(".")):
        value = {part: value}
    return PlannedRun(tree=value, places={key: ConfigPosition(argument=argument)})


def _merge(tree: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        if value is _REMOVED:
            tree.pop(name, None)
        elif isinstance(value, Mapping):
            below = tree.get(name)
            tree[name] = below if isinstance(below, dict) else {}
            _merge(tree[name], value)
        else:
            tree[name] = value


def _is_unknown(value: Any) -> bool:
    return isinstance(value, str) and ("${" in value or value == UNKNOWN)
