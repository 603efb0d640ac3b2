"""Read a run's configuration: its command, whose own program composes it in a child, files, and overrides."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_rlregress.commands.preflight.config import (
    TRL_KEYS,
    ConfigError,
    ConfigPosition,
    PlannedRun,
    read_file,
    read_override,
)
from pytest_rlregress.commands.preflight.script import read_script
from pytest_rlregress.commands.preflight.trainers import Schema, known_schema
from pytest_rlregress.commands.preflight.words import parse_command, read_options, split_assignments
from pytest_rlregress.stack.installed import distributions, read_head
from pytest_rlregress.util.cache import folder as cache_folder
from pytest_rlregress.util.files import write_whole
from pytest_rlregress.util.launch_script import is_script
from pytest_rlregress.util.processes import end_with_parent
from pytest_rlregress.util.text import on_one_line

#: Runs a command up to its configuration, in the command's interpreter.
CHILD = Path(__file__).with_name("child.py")
SECONDS = 300.0  # in which a stack is imported, also from a slow disk
# verl's engines beside its own FSDP, dp.
_ENGINES = ("megatron", "torchtitan", "veomni")
# A file of TRL's that has one of these is for GRPO.
_OF_GRPO = {"num_generations", "max_completion_length", "reward_funcs", "use_vllm"}
# They differ from shell to shell and from test to test, and no trainer asks for them.
_PASSING = {"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"}


def read(
    arguments: Sequence[str], environ: Mapping[str, str], command: Sequence[str] = (), *, asks: bool = True
) -> PlannedRun:
    """Read a command, and over it files and ``key=value`` overrides in the order given.

    Args:
        arguments: Files and overrides.
        environ: What the command is started with.
        command: Its words.
        asks: Whether the trainer that is installed here is asked for what it composes, and for its keys and values.
            Without it a run is what its words and files say.

    Raises:
        ConfigError: A file is missing, unreadable or of another kind; files of two trainers; of none of the trainers.
    """
    read_it = _read_command if asks else _read_words
    parts = [read_it(command, environ)] if command else []
    parts += [_read_argument(one) for one in arguments]
    title = ", ".join(dict.fromkeys(file for part in parts for file in part.files)) or " ".join(command)
    if not title:
        raise ConfigError(
            "no file and no command: write rlregress preflight run.yaml, or rlregress preflight -- COMMAND"
        )
    trainers = {part.trainer for part in parts if part.trainer}
    if len(trainers) > 1:
        raise ConfigError(
            f"{title}: of {' and '.join(sorted(trainers))}. TOML is prime-rl's, flat YAML TRL's, other YAML "
            "verl's. Check one run."
        )
    run, *others = parts
    run.trainer, run.environ = trainers.pop(), {**environ, **run.environ}
    for part in others:
        run.lay_over(part)
    if not asks:
        return run
    known = run.keys.sections or sorted(TRL_KEYS)
    if not run.tree.keys() & set(known):
        if "accelerate" in run.tree:
            raise ConfigError(f"{title}: accelerate's configuration alone: give TRL's beside it")
        raise ConfigError(f"{title}: no configuration of {run.trainer}, which has some of {', '.join(known)}")
    run.written = run.composed.get("written") or copy.deepcopy(run.tree)
    if run.trainer == "verl":
        run.tree = _follow_references(run)
    run.schema = _find_schema(run)
    return run


def _read_argument(argument: str) -> PlannedRun:
    """Read a file by its suffix, or an override; ``trainer=train.toml`` is prime-rl's ``--trainer @ train.toml``."""
    key, _, value = argument.partition("=")
    if value.endswith(".toml") and key in ("trainer", "orchestrator", "inference"):
        part = read_file(Path(value))
        part.tree = {key: part.tree}
        part.places = {f"{key}.{name}": place for name, place in part.places.items()}
        return part
    if ("=" in argument or argument.startswith("~")) and not os.path.exists(argument):
        if argument.startswith("-"):
            raise ConfigError(f"{argument}: an override has no dashes: {argument.lstrip('-')}")
        return read_override(argument)
    return read_file(Path(argument))


def _follow_references(run: PlannedRun) -> dict[str, Any]:
    """Return a run's tree with its references to other keys and to the environment followed; what can't be is ``???``.

    Raises:
        ConfigError: OmegaConf can't read one of its values.
    """
    tree = run.tree
    try:
        from omegaconf import OmegaConf
    except ImportError:  # it comes with verl: without it, a value with a reference isn't known
        return tree
    from pytest_rlregress.commands.preflight.stops import resolve

    for key, value in run.leaves():
        if isinstance(value, str) and "${" in value:
            try:
                OmegaConf.create({"value": value})
            except Exception as error:  # of its parser
                what = on_one_line(str(error))
                raise ConfigError(f"{run.place(key)}: {key}: {value!r} isn't a value of OmegaConf's: {what}") from None
    resolved: dict[str, Any] = resolve(OmegaConf.create(tree, flags={"allow_objects": True}))
    return resolved


def _read_command(command: Sequence[str], environ: Mapping[str, str]) -> PlannedRun:
    """Return what a command's program composes, the variables that ``env`` sets, and where each was written.

    Where its interpreter can't import the program, a command of verl's is what its overrides say.

    Raises:
        ConfigError: The command ends before it has composed a configuration.
    """
    run, words = split_assignments(command)
    if is_script(words):
        return read_script(words, {**environ, **run.environ}, environ, _read_command)
    parsed = parse_command(command)
    run, words, overrides = parsed.run, parsed.words, parsed.overrides
    answer = _ask(words, {**environ, **run.environ}, parsed.interpreter)
    if "error" in answer and not (answer.get("not_importable") and overrides):
        files = [word for word in words if word.endswith((".yaml", ".yml"))] if answer.get("not_importable") else []
        hint = f". Its file can be checked without it: rlregress preflight {' '.join(files)}" if files else ""
        raise ConfigError(f"{run.program}: no configuration was composed: {answer['error']}{hint}")
    for override in overrides:
        run.lay_over(override)
    run.not_composed = answer.get("error", "")
    if not run.not_composed:
        _take(run, answer)
        for override in overrides:  # what is refused isn't composed, but told
            if not override.places.keys().isdisjoint(answer["refused"]):
                run.lay_over(override)
    return run


def _read_words(command: Sequence[str], environ: Mapping[str, str]) -> PlannedRun:
    """Return what the words of a command say; only a script has to be run for it, up to its trainer.

    Raises:
        ConfigError: A script ends before it has made a trainer; a file can't be read.
    """
    run, words = split_assignments(command)
    if is_script(words):
        return read_script(words, {**environ, **run.environ}, environ, _read_words)
    parsed = parse_command(command)
    run = parsed.run
    run.words = tuple(parsed.words)
    run.environ = {name: text for name, text in environ.items() if os.environ.get(name) != text} | run.environ
    if Path(parsed.words[0]).name == "trl":
        run.trainer = "trl"
        read_options(run, parsed.words[2:])
    elif parsed.overrides or run.program.startswith("verl."):
        for override in parsed.overrides:
            run.lay_over(override)
    else:
        return _read_command(words, environ)
    return run


def _take(run: PlannedRun, answer: dict[str, Any]) -> None:
    """Take what a program composed, and where: by a script, a file of ``--config`` or options."""
    run.composed, run.tree = answer, answer["tree"]
    run.trainer, run.program = answer["trainer"], answer["program"]
    script = ConfigPosition(*answer.get("place", [run.program]))
    if run.trainer == "trl":
        keys = [*run.tree, *answer["refused"], *answer.get("arguments", {}).get("refused", ())]
        if "place" in answer:
            run.places |= dict.fromkeys(keys, script)
        else:
            in_file = read_file(Path(answer["config"])).places if "config" in answer else {}
            run.places |= {
                key: ConfigPosition(argument=f"--{key} {run.tree[key]}" if key in run.tree else f"--{key}")
                for key in keys
            }
            run.places |= {key: in_file[key] for key in in_file if key not in answer["options"]}
        run.tree["accelerate"] = _read_launcher(run, answer["launcher"])
    for name in answer["environ"].keys() - run.places.keys():
        run.environ[name], run.places[name] = answer["environ"][name], script


def _read_launcher(run: PlannedRun, launcher: dict[str, Any]) -> dict[str, Any]:
    """Return accelerate's configuration: its file, and over it the launcher's options."""
    name = launcher.pop("config_file", None)
    places = {f"accelerate.{key}": ConfigPosition(argument=f"--{key} {value}") for key, value in launcher.items()}
    run.places |= places
    if not name:
        return launcher
    below = read_file(Path(name))
    if "accelerate" not in below.tree:
        raise ConfigError(f"{name}: no configuration of accelerate, for which {run.program} takes it")
    run.places = below.places | run.places
    return {**below.tree["accelerate"], **launcher}


def _ask(words: Sequence[str], environ: Mapping[str, str], interpreter: Sequence[str] = ()) -> dict[str, Any]:
    """Run a command in a child up to where its configuration is composed, and return the child's answer.

    Args:
        words: The command, which begins with Python, TRL's command, a launcher or a script.
        environ: What the run is started with.
        interpreter: What runs the child, if not what runs the command.
    """
    interpreter = interpreter or _find_interpreter(words[0], environ)
    if not interpreter or not shutil.which(interpreter[0], path=environ.get("PATH", os.defpath)):
        return {"error": f"there is no {[*interpreter, words[0]][0]}", "not_importable": True}
    with TemporaryDirectory(prefix="rlregress-") as folder:
        answer, log = Path(folder, "answer.json"), Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*interpreter, str(CHILD), str(answer), *words],
                env={**environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGKILL, os.getpid()),
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
        for left in found.pop("unconfined", ()):
            print(f"rlregress preflight: the kernel can't confine the command: {left}; it was watched", file=sys.stderr)
        if found.get("not_importable"):
            found["error"] = f"{interpreter[0]}: {found['error']}"
        elif "exit code" in found.get("error", ""):
            found["error"] += ": " + log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        return found


def _find_interpreter(program: str, environ: Mapping[str, str]) -> list[str]:
    """Return the interpreter that runs a program: itself, or the one beside a script that its package installed."""
    path = environ.get("PATH", os.defpath)
    found = shutil.which("python3" if program.endswith(".py") else program, path=path)
    if found and not Path(found).name.startswith("python"):
        found = shutil.which("python", path=str(Path(found).resolve().parent)) or shutil.which("python3", path=path)
    return [found] if found else []


def _find_schema(run: PlannedRun) -> Schema:
    """Return the keys and values that a run's trainer takes, as its command or the installed trainer says."""
    trainer, tree, answer = run.trainer, run.tree, run.composed
    if not answer:
        if run.not_composed or trainer == "prime-rl":
            return known_schema(trainer, run.not_composed)
        if find_spec(trainer) is None:
            return known_schema(trainer, f"{trainer} is not installed here")
        if trainer == "verl":
            strategy = tree.get("actor_rollout_ref", {}).get("actor", {}).get("strategy")
            engine = tree.get("model_engine") or (strategy if strategy in _ENGINES else "dp")
            answer = ask_installed("verl", "python", "-P", "-m", "verl.trainer.main_ppo", f"model_engine={engine}")
        elif tree.keys() & _OF_GRPO:
            answer = ask_installed("trl", "trl", "grpo")
        else:
            why = "which of TRL's methods this is for, its command says: -- trl METHOD --config …"
            return known_schema(trainer, why)
        if "error" in answer:
            return known_schema(trainer, f"{trainer} can't be asked here ({answer['error']})")
    return Schema(
        answer["release"],
        True,
        frozenset(answer["keys"]),
        frozenset(answer.get("tables", ())),
        {table: frozenset(names) for table, names in answer.get("fields", {}).items()},
        answer["values"],
        answer.get("defaults", {}),
        answer.get("folder", ""),
    )


@cache
def ask_installed(package: str, *words: str) -> dict[str, Any]:
    """Return what a program of the trainer that is installed here answers, or answered before.

    Importing a trainer takes seconds. Its answer is used again while the same packages are installed, no file of the
    trainer has changed, and interpreter and environment are the same; the environment may hold secrets.
    """
    spec = find_spec(package)
    folders = [Path(one) for one in (spec.submodule_search_locations if spec else None) or ()]
    known = [
        sys.executable,
        sorted((name, text) for name, text in os.environ.items() if name not in _PASSING),
        sorted(map(read_head, distributions())),
        max(file.stat().st_mtime for one in [*folders, CHILD] for file in [one, *one.rglob("*")]),
    ]
    asked = sha256(json.dumps(known).encode()).hexdigest()
    file = cache_folder() / "preflight" / f"{sha256(' '.join(words).encode()).hexdigest()[:16]}.json"
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked:
            return kept["answer"]  # type: ignore[no-any-return]
    except (OSError, ValueError, LookupError, TypeError):  # none is kept, or something else
        pass
    answer = _ask(words, os.environ, [sys.executable])
    if "error" not in answer:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"asked": asked, "answer": answer}))
    return answer
