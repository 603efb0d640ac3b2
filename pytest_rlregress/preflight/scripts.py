"""Read launch scripts: what they hand to verl or to a script of TRL's, and how they start it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_rlregress.preflight.formats import (
    TRL_KEYS,
    TRL_METHODS,
    ConfigError,
    ConfigPart,
    ConfigPosition,
    LaunchCommand,
    merge,
    read_override,
    read_yaml,
    value_of,
)
from pytest_rlregress.preflight.shell import UNKNOWN, Shell, Word

# A dot is in every key of verl's that matters here; its configuration groups have none.
_OVERRIDE = re.compile(r"(?:\+{0,2}|~)(?:[A-Za-z_]\w*(?:\.[\w-]+)+|model_engine)=.*", re.DOTALL)
_STARTS_MODULE = re.compile(r"(?:(?:nohup|exec|time) )?(\S+)(?: -[a-zA-Z]+)*? -m (\w+(?:\.\w+)+)(?: .*)?", re.DOTALL)
_CHANGES_THE_INTERPRETER = ("source", ".", "conda", "mamba", "module", "cd", "pushd")
# Other files than verl's own, which have its own names.
_HYDRA_FILE = re.compile(r"--config-(?:name(?!=ppo\w*_trainer)|path(?!=config$)|dir)(?:=.*)?", re.DOTALL)

_PLACED_BY = ("accelerate", "torchrun", "python", "deepspeed", "trl", "uv")


def read_script(text: str, file: str, environ: Mapping[str, str]) -> ConfigPart:
    """Read the arguments that a launch script hands to the trainer, the variables that it exports, and how it starts.

    Of what is behind a condition that is not known here, values are unknown too.
    """
    part = ConfigPart(file)
    shell = Shell(environ)
    unknown, trl = "", None
    for words in shell.commands(text):
        texts = [word.text for word in words]
        if _OVERRIDE.fullmatch(texts[0]):  # for bash a command of that name: a comment has cut it off from the run's
            continue
        unknown = texts[0] if texts[0] in _CHANGES_THE_INTERPRETER else unknown
        found = _STARTS_MODULE.fullmatch(" ".join(texts))
        if found and (Path(found[1]).name.startswith("python") or found[1] == UNKNOWN):
            part.places[found[2]] = ConfigPosition(file, words[0].line)
            part.commands[found[2]] = LaunchCommand(found[1], found[2], unknown)
        if found := re.fullmatch(r"(?:.* )?-m (\w+(?:\.\w+)+)(?: .*)?", " ".join(texts), re.DOTALL):
            own = " with its own configuration" if any(map(_HYDRA_FILE.fullmatch, texts)) else ""
            part.program = f"{found[1]}{own}"
        for word in words:
            if _OVERRIDE.fullmatch(word.text):
                _take_override(part, word, file)
        trl = _of_trl(words) or trl
    part.places.update((name, ConfigPosition(file, line)) for name, line in shell.lines.items())
    part.exports.update((name, shell.variables[name]) for name in shell.exported & shell.variables.keys())
    if trl and not part.tree:
        return _read_trl(part, *trl)
    part.trainer = "verl"
    return part


def _take_override(part: ConfigPart, word: Word, file: str) -> None:
    override = read_override(word.text)
    (name,) = override.places
    if not word.certain and "=" in word.text:
        override = read_override(f"{word.text.partition('=')[0]}={UNKNOWN}")
    merge(part.tree, override.tree)
    part.places[name] = ConfigPosition(file, word.line)
    part.signs.update(override.signs)


def _of_trl(words: list[Word]) -> tuple[str, list[Word], list[Word]] | None:
    """Split a command that starts a script of TRL's into its program, the launcher's options and the script's."""
    texts = [word.text for word in words]
    if not any(Path(text).name.startswith(_PLACED_BY) for text in texts[:3]):
        return None
    for at, text in enumerate(texts):
        if text.endswith(".py") and not text.startswith("-"):
            names = {option.partition("=")[0].lstrip("-").replace("-", "_") for option in texts[at + 1 :]}
            launcher = words[:at]
            return (text, launcher, words[at + 1 :]) if len(names & TRL_KEYS) > 1 or "config" in names else None
        if Path(text).name == "trl" and texts[at + 1 : at + 2] and texts[at + 1] in TRL_METHODS:
            return f"trl {texts[at + 1]}", words[at : at + 1], words[at + 2 :]
    return None


def _read_trl(part: ConfigPart, program: str, launcher: list[Word], own: list[Word]) -> ConfigPart:
    """Read the options of a script of TRL's: its file, over it its own, and what accelerate is told."""
    part.trainer, part.program = "trl", program
    accelerate: dict[str, Any] = {}
    if Path(launcher[0].text).name.startswith("python") and all(word.text != "-m" for word in launcher):
        accelerate["num_processes"] = 1
    for name, value, place in _options(launcher, part.file):
        if name in ("config_file", "num_processes", "nproc_per_node", "num_gpus"):
            accelerate["config_file" if name == "config_file" else "num_processes"] = value
            part.places["accelerate.num_processes"] = place
    for name, value, place in _options(own, part.file):
        if name in ("accelerate_config", "config_file", "num_processes") and program.startswith("trl "):
            accelerate["num_processes" if name == "num_processes" else "config_file"] = value
            part.places["accelerate.num_processes"] = place
        elif name == "config":
            _lay_below(part, str(value))
        else:
            part.tree[name] = value
            part.places[name] = place
            part.signs[name] = ""
    if name := accelerate.pop("config_file", None):
        accelerate = _accelerate_file(str(name), part) | accelerate
    if accelerate:
        part.tree["accelerate"] = accelerate
    return part


def _lay_below(part: ConfigPart, name: str) -> None:
    """Read the file of ``--config``; what is not here is said when its keys are asked for."""
    file = _beside(name, part.file)
    if file is None:
        part.tree["config"] = UNKNOWN
        return
    below = read_yaml(file)
    part.tree |= {key: value for key, value in below.tree.items() if key not in part.tree}
    part.places.update((key, place) for key, place in below.places.items() if key not in part.places)
    part.exports.update(below.exports)


def _accelerate_file(name: str, part: ConfigPart) -> dict[str, Any]:
    """Read accelerate's file, or the one that TRL brings under that name."""
    file = _beside(name, part.file)
    trl = None if file else find_spec("trl")
    if trl and trl.submodule_search_locations:
        shipped = Path(trl.submodule_search_locations[0]) / "accelerate_configs" / f"{name}.yaml"
        file = shipped if shipped.is_file() else None
    if file is None:
        return {"distributed_type": UNKNOWN}
    below = read_yaml(file)
    if "accelerate" not in below.tree:
        raise ConfigError(f"{file}: no configuration of accelerate, for which {part.file} takes it")
    part.places.update((key, place) for key, place in below.places.items() if key not in part.places)
    return dict(below.tree["accelerate"])


def _beside(name: str, script: str | None) -> Path | None:
    """Return the file of this name: from here, or from the script's folder."""
    candidates = (Path(name), Path(script or ".").parent / name)
    return next((one for one in candidates if UNKNOWN not in name and one.is_file()), None)


def _options(words: list[Word], file: str | None) -> Iterator[tuple[str, Any, ConfigPosition]]:
    """Yield options as HfArgumentParser reads them: ``--name value …``, ``--name=value`` or ``--name`` alone."""
    at = 0
    while at < len(words):
        option = words[at]
        at += 1
        if not option.text.startswith("--") or option.text == "--":
            continue
        name, given, value = option.text[2:].partition("=")
        values = [value] if given else []
        while not given and at < len(words) and not re.match(r"--?[A-Za-z]|\d?>", words[at].text):
            values.append(words[at].text)
            at += 1
        read = [value_of(one) for one in values] or [True]
        known = read[0] if len(read) == 1 else read
        yield name.replace("-", "_"), known if option.certain else UNKNOWN, ConfigPosition(file, option.line)
