"""Read a run's command: its program composes the configuration in a child, and ends there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_rlregress.commands.preflight.formats import (
    ConfigError,
    ConfigPart,
    ConfigPosition,
    merge,
    read_override,
    read_yaml,
)

# A dot is in every key of verl's that matters here; its configuration groups have none.
_KEY = r"(?:[A-Za-z_]\w*(?:\.[\w-]+)+|model_engine)"
_OVERRIDE = re.compile(rf"\+{{0,2}}{_KEY}=.*|~{_KEY}(?:=.*)?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_WRAPPERS = ("env", "nohup", "exec", "time")
_STARTS_PYTHON = re.compile(r"python[\d.]*|trl|accelerate|torchrun|\S+\.py")
#: Runs a command up to its configuration, in the command's interpreter.
CHILD = Path(__file__).with_name("child.py")
SECONDS = 300.0  # in which a stack is imported, also from a slow disk


def read_command(command: Sequence[str], environ: Mapping[str, str]) -> ConfigPart:
    """Return what a command's program composes, the variables that ``env`` sets, and where each was written.

    Where its interpreter can't import the program, a command of verl's is what its overrides say.

    Raises:
        ConfigError: The command ends before it has composed a configuration.
    """
    part = ConfigPart(trainer="verl")
    words = [*command]
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.fullmatch(words[0])):
        word = words.pop(0)
        if found := _ASSIGNMENT.fullmatch(word):
            part.exports[found[1]] = found[2]
            part.places[found[1]] = ConfigPosition(argument=word)
    at = next((at for at, word in enumerate(words) if _STARTS_PYTHON.fullmatch(Path(word).name)), None)
    if at is None:
        raise ConfigError(f"{' '.join(command)}: starts none of python, accelerate, torchrun and trl")
    interpreter = ["uv", "run", "--no-sync", *words[2:at], "python"] if words[:2] == ["uv", "run"] else []
    starts_itself, words = at == 0, words[at:]
    part.program = " ".join(words[:2])
    if "-m" in words[:-1]:
        at = words.index("-m") + 1
        part.program = words[at]
        if starts_itself and Path(words[0]).name.startswith("python"):
            part.places[part.program] = ConfigPosition(argument=" ".join(words[: at + 1]))
            part.interpreter = words[0]
    overrides = [read_override(word) for word in words if _OVERRIDE.fullmatch(word)]
    for override in overrides:
        merge(part.tree, override.tree)
        part.places |= override.places
        part.signs |= override.signs
    answer = ask(words, {**environ, **part.exports}, interpreter)
    if "error" not in answer:
        _take(part, answer)
        for override in overrides:  # what is refused isn't composed, but told
            if not override.signs.keys().isdisjoint(answer["refused"]):
                merge(part.tree, override.tree)
    elif answer.get("not_importable") and part.tree:
        part.not_composed = answer["error"]
    else:
        files = [word for word in words if word.endswith((".yaml", ".yml"))] if answer.get("not_importable") else []
        hint = f". Its file can be checked without it: rlregress preflight {' '.join(files)}" if files else ""
        raise ConfigError(f"{part.program}: no configuration was composed: {answer['error']}{hint}")
    return part


def _take(part: ConfigPart, answer: dict[str, Any]) -> None:
    """Take what a program composed, and where: by a script, a file of ``--config`` or options."""
    part.answer, part.tree, part.trainer, part.program = answer, answer["tree"], answer["trainer"], answer["program"]
    script = ConfigPosition(*answer.get("place", [part.program]))
    if part.trainer == "trl":
        keys = [*part.tree, *answer["refused"]]
        if "place" in answer:
            part.places |= dict.fromkeys(keys, script)
        else:
            in_file = read_yaml(Path(answer["config"])).places if "config" in answer else {}
            part.places |= {
                key: ConfigPosition(argument=f"--{key} {part.tree[key]}" if key in part.tree else f"--{key}")
                for key in keys
            }
            part.places |= {key: in_file[key] for key in in_file if key not in answer["options"]}
            part.signs |= dict.fromkeys(answer["options"], "")
        part.tree["accelerate"] = _accelerate_of(part, answer["launcher"])
    for name in answer["environ"].keys() - part.places.keys():
        part.exports[name], part.places[name] = answer["environ"][name], script


def _accelerate_of(part: ConfigPart, launcher: dict[str, Any]) -> dict[str, Any]:
    """Return accelerate's configuration: its file, and over it the launcher's options."""
    name = launcher.pop("config_file", None)
    part.places |= {f"accelerate.{key}": ConfigPosition(argument=f"--{key} {value}") for key, value in launcher.items()}
    if not name:
        return launcher
    below = read_yaml(Path(name))
    if "accelerate" not in below.tree:
        raise ConfigError(f"{name}: no configuration of accelerate, for which {part.program} takes it")
    part.places = below.places | part.places
    return {**below.tree["accelerate"], **launcher}


def ask(words: Sequence[str], environ: Mapping[str, str], interpreter: Sequence[str] = ()) -> dict[str, Any]:
    """Run a command in a child up to where its configuration is composed, and return the child's answer.

    Args:
        words: The command, which begins with Python, TRL's command, a launcher or a script.
        environ: What the run is started with.
        interpreter: What runs the child, if not what runs the command.
    """
    interpreter = interpreter or _interpreter_of(words[0], environ)
    if not interpreter or not shutil.which(interpreter[0], path=environ.get("PATH", os.defpath)):
        return {"error": f"there is no {[*interpreter, words[0]][0]}", "not_importable": True}
    with TemporaryDirectory(prefix="rlregress-") as folder:
        answer = Path(folder, "answer.json")
        command = [*interpreter, str(CHILD), str(answer), *words]
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return {"error": f"that took more than {SECONDS:.0f} seconds"}
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found: dict[str, Any] = {"error": f"the command ended with exit code {code}"}
        if answer.is_file():
            found = json.loads(answer.read_text(encoding="utf-8"))
        if found.get("not_importable"):
            found["error"] = f"{interpreter[0]}: {found['error']}"
        elif "exit code" in found.get("error", ""):
            found["error"] += ": " + log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        return found


def _interpreter_of(program: str, environ: Mapping[str, str]) -> list[str]:
    """Return the interpreter that runs a program: itself, or the one beside a script that its package installed."""
    path = environ.get("PATH", os.defpath)
    found = shutil.which("python3" if program.endswith(".py") else program, path=path)
    if found and not Path(found).name.startswith("python"):
        found = shutil.which("python", path=str(Path(found).resolve().parent)) or shutil.which("python3", path=path)
    return [found] if found else []
