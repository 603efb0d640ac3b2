"""Read a run's command, as a shell hands it over: what verl or a script of TRL's is given, and how it is started."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_rlregress.preflight.formats import (
    TRL_KEYS,
    TRL_METHODS,
    UNKNOWN,
    ConfigError,
    ConfigPart,
    ConfigPosition,
    merge,
    read_override,
    read_yaml,
    value_of,
)

# A dot is in every key of verl's that matters here; its configuration groups have none.
_OVERRIDE = re.compile(r"(?:\+{0,2}|~)(?:[A-Za-z_]\w*(?:\.[\w-]+)+|model_engine)=.*", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_WRAPPERS = ("env", "nohup", "exec", "time")
# Other files than verl's own, which have its own names.
_HYDRA_FILE = re.compile(r"--config-(?:name(?!=ppo\w*_trainer)|path(?!=config$)|dir)(?:=.*)?", re.DOTALL)
_PLACED_BY = ("accelerate", "torchrun", "python", "deepspeed", "trl", "uv")


def read_command(command: Sequence[str]) -> ConfigPart:
    """Read what a command hands to the trainer, the variables that ``env`` sets, and how it starts."""
    part = ConfigPart()
    words = [*command]
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.fullmatch(words[0])):
        word = words.pop(0)
        if found := _ASSIGNMENT.fullmatch(word):
            part.exports[found[1]] = found[2]
            part.places[found[1]] = ConfigPosition(argument=word)
    overrides = [word for word in words if _OVERRIDE.fullmatch(word)]
    if not overrides and (trl := _of_trl(words)):
        return _read_trl(part, *trl)
    part.trainer = "verl"
    if "-m" in words[:-1]:
        at = words.index("-m")
        module = words[at + 1]
        part.program = module + " with its own configuration" * any(map(_HYDRA_FILE.fullmatch, words))
        if Path(words[0]).name.startswith("python") and all(word.startswith("-") for word in words[1:at]):
            part.places[module] = ConfigPosition(argument=" ".join(words[: at + 2]))
            part.interpreter = words[0]
    for word in overrides:
        override = read_override(word)
        merge(part.tree, override.tree)
        part.places |= override.places
        part.signs |= override.signs
    part.program = part.program or " ".join(words[:2])
    return part


def _of_trl(words: list[str]) -> tuple[str, list[str], list[str]] | None:
    """Split a command that starts a script of TRL's into its program, the launcher's options and the script's."""
    if not any(Path(word).name.startswith(_PLACED_BY) for word in words[:3]):
        return None
    for at, word in enumerate(words):
        if word.endswith(".py"):
            names = {option.partition("=")[0].lstrip("-").replace("-", "_") for option in words[at + 1 :]}
            return (word, words[:at], words[at + 1 :]) if len(names & TRL_KEYS) > 1 or "config" in names else None
        if Path(word).name == "trl" and words[at + 1 : at + 2] and words[at + 1] in TRL_METHODS:
            return f"trl {words[at + 1]}", words[at : at + 1], words[at + 2 :]
    return None


def _read_trl(part: ConfigPart, program: str, launcher: list[str], own: list[str]) -> ConfigPart:
    """Read the options of a script of TRL's: its file, over it its own, and what accelerate is told."""
    part.trainer, part.program = "trl", program
    accelerate: dict[str, Any] = {}
    if Path(launcher[0]).name.startswith("python") and "-m" not in launcher:
        accelerate["num_processes"] = 1
    for name, value, place in _options(launcher):
        if name in ("config_file", "num_processes", "nproc_per_node", "num_gpus"):
            accelerate["config_file" if name == "config_file" else "num_processes"] = value
            part.places["accelerate.num_processes"] = place
    for name, value, place in _options(own):
        if name in ("accelerate_config", "config_file", "num_processes") and program.startswith("trl "):
            accelerate["num_processes" if name == "num_processes" else "config_file"] = value
            part.places["accelerate.num_processes"] = place
        elif name == "config":
            _lay_below(part, Path(str(value)))
        else:
            part.tree[name] = value
            part.places[name] = place
            part.signs[name] = ""
    if name := accelerate.pop("config_file", None):
        accelerate = _accelerate_file(str(name), part) | accelerate
    if accelerate:
        part.tree["accelerate"] = accelerate
    return part


def _lay_below(part: ConfigPart, file: Path) -> None:
    """Read the file of ``--config``; if it isn't here, that is said when its keys are asked for."""
    if not file.is_file():
        part.tree["config"] = UNKNOWN
        return
    below = read_yaml(file)
    part.tree = below.tree | part.tree
    part.places = below.places | part.places
    part.exports |= below.exports


def _accelerate_file(name: str, part: ConfigPart) -> dict[str, Any]:
    """Read accelerate's file, or the one that TRL brings under that name."""
    file, trl = Path(name), find_spec("trl")
    if not file.is_file() and trl and trl.submodule_search_locations:
        file = Path(trl.submodule_search_locations[0]) / "accelerate_configs" / f"{name}.yaml"
    if not file.is_file():
        return {"distributed_type": UNKNOWN}
    below = read_yaml(file)
    if "accelerate" not in below.tree:
        raise ConfigError(f"{file}: no configuration of accelerate, for which {part.program} takes it")
    part.places = below.places | part.places
    return dict(below.tree["accelerate"])


def _options(words: list[str]) -> Iterator[tuple[str, Any, ConfigPosition]]:
    """Yield options as HfArgumentParser reads them: ``--name value …``, ``--name=value`` or ``--name`` alone."""
    at = 0
    while at < len(words):
        option = words[at]
        begin, at = at, at + 1
        if not option.startswith("--") or option == "--":
            continue
        name, given, value = option[2:].partition("=")
        while not given and at < len(words) and not re.match(r"--?[A-Za-z]", words[at]):
            at += 1
        read = [value_of(one) for one in ([value] if given else words[begin + 1 : at])] or [True]
        place = ConfigPosition(argument=" ".join(words[begin:at]))
        yield name.replace("-", "_"), read[0] if len(read) == 1 else read, place
