"""Run a command up to where its configuration is composed, write that as JSON, and end the process.

The command's own interpreter runs it, as ``python child.py ANSWER.json COMMAND …``: beside the standard library it
imports only what the command imports. As soon as Hydra, TRL's parser and TRL's trainers are imported, they are replaced
by functions that write the answer and end the process. Until then no process can be started, no connection opened and
no file written, and what would load a model or data gives a mock object.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

# What the command finds in its environment until its configuration is composed: no GPU, and nothing for W&B to do.
_HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled"}
_STARTS = ("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen", "socket.connect")
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate")
# Where a release has the texts that a key takes: in which of its files, and what they are given to or compared with.
_ADVANTAGE, _ACTOR = "algorithm.adv_estimator", "actor_rollout_ref.actor"
_TEXTS = {
    _ADVANTAGE: ("verl/trainer/ppo/core_algos.py", "register_adv_est"),
    f"{_ACTOR}.policy_loss.loss_mode": ("verl/trainer/ppo/core_algos.py", "register_policy_loss"),
    f"{_ACTOR}.loss_agg_mode": ("verl/trainer/ppo/core_algos.py", "loss_agg_mode"),
    "critic.loss_agg_mode": ("verl/trainer/ppo/core_algos.py", "loss_agg_mode"),
    f"{_ACTOR}.strategy": ("verl/workers/engine/*/*.py", "backend"),
    "actor_rollout_ref.rollout.name": ("verl/workers/rollout/replica.py", r"RolloutReplicaRegistry\.register"),
    "actor_rollout_ref.rollout.dtype": ("vllm/config/model.py", "ModelDType"),
    "loss_type": ("trl/trainer/{}_trainer.py", "loss_type"),
    "scale_rewards": ("trl/trainer/{}_trainer.py", "scale_rewards"),
    "vllm_mode": ("trl/generation/vllm_generation.py", r"self\.mode"),
}
# What loads a model or data, or starts an engine or a process group, by module.
_LOADERS = {
    "datasets": ("load_dataset", "load_from_disk"),
    "torch.distributed": ("init_process_group",),
    "transformers.modeling_utils": ("PreTrainedModel.from_pretrained",),
    "transformers.models.auto.auto_factory": ("_BaseAutoModelClass.from_pretrained",),
    "transformers.models.auto.processing_auto": ("AutoProcessor.from_pretrained",),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer.from_pretrained",),
    "vllm": ("LLM",),
}
# How from_pretrained and model_init_kwargs name what TRL's options name so too.
_OF_MODEL = ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")

_answer: dict[str, Any] = {"refused": []}
_answer_file = Path()
_environ = dict(os.environ)
_of_file: dict[str, Any] = {}  # what TRL's parser is given by the file of --config


def main(file: str, words: list[str]) -> None:
    """Run a command, and write the answer to a file."""
    global _answer_file
    _answer_file = Path(file).resolve()
    os.environ.update(_HIDDEN)
    tempfile.tempdir = str(_answer_file.parent)  # the only folder that may be written to
    del sys.path[0]  # the command may have modules of the same names as those beside this file
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, _AfterImport())
    sys.addaudithook(_refuse)
    try:
        _run(words)
        error = "the command ended"
    except SystemExit as exit:
        error = f"the command ended with exit code {exit.code or 0}"
    except BaseException as exception:
        others = ("<frozen", os.path.dirname(__file__), sys.prefix, sys.base_prefix)
        frames = [one for one in traceback.extract_tb(exception.__traceback__) if not one.filename.startswith(others)]
        where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
        error = f"{where}{type(exception).__name__}: {exception}"
        _answer["not_importable"] = isinstance(exception, ImportError)
    _end(error=error)


def _end(**found: Any) -> None:
    """Write the answer and end the process, without what the command does when it ends."""
    _show_environment()
    changed = {name: text for name, text in os.environ.items() if _environ.get(name) != text}
    text = json.dumps({**_answer, **found, "environ": changed}, default=_make_plain)
    _answer_file.write_text(text, encoding="utf-8")
    os._exit(0)


def _show_environment() -> None:
    for name, hidden in _HIDDEN.items():
        if os.environ.get(name) == hidden:
            os.environ.pop(name)
            os.environ.update({name: _environ[name]} if name in _environ else {})


def _make_plain(value: Any) -> Any:
    """Return a value that JSON doesn't have as one that it has."""
    return value.value if isinstance(value, Enum) else str(value).removeprefix("torch.")


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse, as an audit hook, to start, to connect and to write."""
    if event.startswith(_STARTS):
        raise PermissionError(f"{event} before the configuration is composed: preflight doesn't allow it")
    writes = event == "open" and ({*str(arguments[1])} & {*"wax+"} or arguments[2] & (os.O_WRONLY | os.O_RDWR))
    if (writes or event in _CHANGES) and not isinstance(arguments[0], int):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if not path.startswith(("/dev/", f"{_answer_file.parent}/")):
            raise PermissionError(f"{path} written before the configuration is composed: preflight doesn't allow it")


class _AfterImport(importlib.abc.MetaPathFinder):
    """Replace parts of modules as soon as they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the specification of a module of which parts are replaced; None for others."""
        replace = _find_replacement(name)
        others = (one.find_spec(name, path, target) for one in sys.meta_path if replace and one is not self)
        spec = next(filter(None, others), None)
        if replace and spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_replace(module: Any) -> None:
                execute(module)
                replace(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _find_replacement(name: str) -> Callable[[Any], None] | None:
    of_trl = re.fullmatch(r"trl\.(?:trainer|experimental\.\w+)\.\w+_(config|trainer)", name)
    if of_trl:
        return _replace_configs if of_trl[1] == "config" else _replace_trainers
    return {
        "hydra": _replace_hydra,
        "peft": _replace_peft,
        "transformers.hf_argparser": _replace_parser,
        "trl.scripts._hf_argparser": _replace_parser,
        "trl.scripts.utils": _replace_defaults,
        **dict.fromkeys(_LOADERS, _replace_loaders),
    }.get(name)


def _run(words: list[str]) -> None:
    """Run the Python of a command: a launcher's, TRL's or its own."""
    name, rest = Path(words[0]).name, words[1:]
    if name == "trl":
        _answer["program"] = f"trl {rest[0]}"
        return _start(f"trl.scripts.{rest[0]}", True, rest[1:], is_safe=True)
    if name == "accelerate":
        rest = ["-m", "accelerate.commands.launch", *rest[1:]]
    elif name == "torchrun":
        rest = ["-m", "torch.distributed.run", *rest]
    is_safe = False
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        is_safe = is_safe or rest[0] == "-P"
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    is_module = rest[:1] == ["-m"]
    target, *arguments = rest[is_module:]
    if is_module and target in ("accelerate.commands.launch", "torch.distributed.run"):
        launch = importlib.import_module(target)
        parser = launch.get_args_parser() if name == "torchrun" else launch.launch_command_parser()
        options = parser.parse_args(arguments)
        _note_launcher(options)
        return _start(options.training_script, options.module, options.training_script_args)
    _note_launcher(argparse.Namespace(num_processes=1))
    return _start(target, is_module, arguments, is_safe)


def _note_launcher(options: argparse.Namespace) -> None:
    """Note how many processes a launcher starts, and its file."""
    count = str(getattr(options, "nproc_per_node", None) or options.num_processes)
    found = {"num_processes": int(count) if count.isdecimal() else None}
    found["config_file"] = getattr(options, "config_file", None)
    _answer["launcher"] = {key: value for key, value in found.items() if value is not None}


def _start(target: str, is_module: bool, arguments: list[str], is_safe: bool = False) -> None:
    """Run a module or a script; with ``is_safe``, as with Python's -P, nothing is imported from where it is run."""
    _answer.setdefault("program", target)
    sys.argv = [target, *arguments]
    if not is_safe:
        sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(target)))
    if is_module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target, run_name="__main__")


def _find_folder(package: str) -> str:
    spec = importlib.util.find_spec(package)
    return spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""


def _find_release(package: str) -> str:
    """Return a package with its version, if it is installed and not only a folder on the path."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        return package


def _find_values(trainer: str, method: str = "") -> dict[str, list[str]]:
    """Return the texts that keys take, by the source of the trainer, as far as there are several."""
    found = {}
    for key, (file, name) in _TEXTS.items():
        package, _, inside = file.format(method).partition("/")
        if ("." in key) == (trainer == "verl"):
            given = rf"\b{name}(?:\s*(?:==|=|in)\s*|\()(?:Literal)?[\[({{]?\s*((?:[\"'][^\"'\n]+[\"'],?\s*)+)"
            sources = [one.read_text(encoding="utf-8") for one in Path(_find_folder(package)).glob(inside)]
            groups = " ".join(group for source in sources for group in re.findall(given, source))
            found[key] = sorted({*re.findall(r"[\"']([\w.-]+)[\"']", groups)})
    return {key: texts for key, texts in found.items() if len(texts) > 1}


# Hydra


def _replace_hydra(hydra: Any) -> None:
    """Let a program end where it composes its configuration, with what Hydra refuses noted and left out."""
    compose = hydra.compose

    def compose_and_end(config_name: Any = None, overrides: Any = (), **_: Any) -> None:
        left = list(overrides)
        while True:
            try:
                config = compose(config_name, left)
                break
            except hydra.errors.ConfigCompositionException as error:
                found = re.match(r"Could not (override|append to|delete from)[^']*'([^']+)'", str(error))
                keys = [word.lstrip("+~").partition("=")[0] for word in left]
                if not found or found[2] not in keys:
                    raise
                _answer["refused"].append(found[2])
                at = keys.index(found[2])
                left[at : at + 1] = [left[at].lstrip("+")] if found[1] == "append to" else []
        not_added = [word for word in left if not word.startswith("+")]
        _end(**_describe_verl(config, config if not_added == left else compose(config_name, not_added)))

    def main(config_path: Any = None, config_name: Any = None, version_base: Any = None) -> Any:
        def decorate(function: Any) -> Any:
            def compose_its_configuration(*_: Any) -> None:
                parser = argparse.ArgumentParser(add_help=False)
                parser.add_argument("--config-path", "-cp", default=config_path or "")
                parser.add_argument("--config-name", "-cn", default=config_name)
                parser.add_argument("--config-dir", "-cd")
                options, words = parser.parse_known_args(sys.argv[1:])
                words = [word for word in words if not word.startswith("-")]
                if options.config_dir:
                    words.append(f"hydra.searchpath=[file://{os.path.abspath(options.config_dir)}]")
                beside = Path(inspect.getfile(function)).resolve().parent
                _show_environment()
                with hydra.initialize_config_dir(str(beside / options.config_path), version_base=version_base):
                    compose_and_end(options.config_name, words)

            return compose_its_configuration

        return decorate

    hydra.main, hydra.compose = main, compose_and_end


def _describe_verl(config: Any, base: Any) -> dict[str, Any]:
    """Return a composed configuration, and the keys and values that it has without what is added to it."""
    from omegaconf import OmegaConf

    own: Any = OmegaConf.to_container(base)
    keys = dict(_walk(own))
    tables = {key: value for key, value in keys.items() if isinstance(value, dict) and value}
    values = _find_values("verl")
    core = sys.modules.get("verl.trainer.ppo.core_algos")
    registered = map(_make_plain, getattr(core, "ADV_ESTIMATOR_REGISTRY", ()))
    values[_ADVANTAGE] = sorted({*values.get(_ADVANTAGE, ()), *registered})
    return {
        "trainer": "verl",
        "release": _find_release("verl"),
        "tree": resolve(config),
        "written": OmegaConf.to_container(config),
        "keys": [key for key in keys if not key.endswith("_target_")],
        "tables": [*tables],
        "fields": {key: fields for key, table in tables.items() if (fields := _list_fields(table.get("_target_")))},
        "values": values,
        "folder": _find_folder("verl"),
    }


def resolve(node: Any) -> Any:
    """Return a node of OmegaConf as plain values: ``???`` for what can't be resolved here."""
    from omegaconf import DictConfig, ListConfig

    if not isinstance(node, (DictConfig, ListConfig)):
        return node
    found: dict[Any, Any] = {}
    for key in [*node] if isinstance(node, DictConfig) else range(len(node)):
        try:
            found[key] = resolve(node[key])
        except Exception:  # of any resolver
            found[key] = "???"
    return found if isinstance(node, DictConfig) else [*found.values()]


def _walk(tree: dict[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        yield f"{table}{name}", value
        if isinstance(value, dict):
            yield from _walk(value, f"{table}{name}.")


def _list_fields(target: Any) -> list[str]:
    module, _, name = str(target).rpartition(".")
    try:
        return [field.name for field in dataclasses.fields(getattr(importlib.import_module(module), name))]
    except Exception:  # no dataclass, or of a package that isn't installed
        return []


# TRL's parser


def _replace_defaults(utils: Any) -> None:
    """Note what TRL's parser is given by the file of ``--config``."""
    set_defaults = utils.TrlParser.set_defaults_with_config

    def set_defaults_with_config(parser: Any, **given: Any) -> Any:
        _of_file.update(given)
        return set_defaults(parser, **given)

    utils.TrlParser.set_defaults_with_config = set_defaults_with_config


def _replace_parser(module: Any) -> None:
    """Let a program end where its parser would make dataclasses, which may need a GPU."""
    module.HfArgumentParser.parse_args_into_dataclasses = _parse_and_end


def _parse_and_end(parser: Any, args: Any = None, *_: Any, **__: Any) -> None:
    program = _answer["program"]
    described = _describe_parser(parser, program.removeprefix("trl "))
    tree = {key: value for key, value in _of_file.items() if key in described["keys"]}
    for action in parser._actions:
        action.default, action.required, action.choices = argparse.SUPPRESS, False, None
    given, words = parser.parse_known_args(sys.argv[1:] if args is None else args)
    words += [word for key in _of_file if key not in tree for word in (f"--{key}", str(_of_file[key]))]
    if program.startswith("trl "):  # accelerate takes the rest
        from accelerate.commands.launch import launch_command_parser
        from trl.cli.accelerate_config import resolve_accelerate_config_argument

        launcher = launch_command_parser()
        options, words = launcher.parse_known_args([*resolve_accelerate_config_argument(words), "script"])
        _note_launcher(options)
        described["keys"] += ["accelerate_config", *(action.dest for action in launcher._actions)]
    _answer["refused"] = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    if _of_file:
        _answer["config"] = sys.argv[sys.argv.index("--config") + 1]
    _end(**described, tree={**tree, **vars(given)}, options=[*vars(given)])


def _describe_parser(parser: Any, method: str) -> dict[str, Any]:
    """Return the options of a parser of TRL's, their defaults and the texts that they take."""
    actions = [action for action in parser._actions if action.dest != "help"]
    keys = {word.lstrip("-").replace("-", "_") for action in actions for word in action.option_strings}
    choices = {action.dest: [str(_make_plain(one)) for one in action.choices] for action in actions if action.choices}
    return {
        "trainer": "trl",
        "release": _find_release("trl"),
        "keys": [*sorted(keys), "config", "accelerate", "env"],
        "defaults": {action.dest: action.default for action in reversed(actions)},  # --name, and not its --no_name
        "values": {**{key: texts for key, texts in _find_values("trl", method).items() if key in keys}, **choices},
    }


# TRL's trainers, in scripts that make their configuration themselves


def _replace_loaders(module: Any) -> None:
    """Let what loads a model or data give a mock object."""
    for dotted in _LOADERS[module.__name__]:
        owner, _, name = dotted.rpartition(".")
        setattr(getattr(module, owner) if owner else module, name, classmethod(_load) if owner else MagicMock())


def _load(cls: Any, name: Any = None, *_: Any, **given: Any) -> MagicMock:
    loaded = MagicMock()
    of_model = {key: value for key, value in given.items() if key in _OF_MODEL}
    loaded.given = {"dtype": given.get("torch_dtype", "auto"), **of_model}
    loaded.given["model_name_or_path"] = given.get("pretrained_model_name_or_path", name)
    return loaded


def _replace_peft(peft: Any) -> None:
    """Let an adapted model be one more mock object, which knows its adapter."""

    def get_peft_model(model: Any, adapter: Any, *_: Any, **__: Any) -> MagicMock:
        adapted = MagicMock()
        adapted.given = {**_read_given(model), "use_peft": True, "lora_r": adapter.r}
        return adapted

    peft.get_peft_model = get_peft_model


def _read_given(model: Any) -> dict[str, Any]:
    if isinstance(model, MagicMock) and isinstance(model.given, dict):
        return model.given
    return {"model_name_or_path": model if isinstance(model, str) else "???"}


def _replace_configs(module: Any) -> None:
    """Let configurations keep what they are given; their own checks may need a GPU."""
    for cls in _list_classes(module, "Config"):
        cls.__init__, cls.__post_init__ = partialmethod(_keep, cls.__init__), lambda config: None


def _keep(config: Any, make: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    known = [*inspect.signature(make).parameters][1:]
    config.given = {**dict(zip(known, args, strict=False)), **kwargs}
    make(config, **{key: value for key, value in config.given.items() if key in known})
    _answer["refused"] += [key for key in config.given if key not in known]
    caller = sys._getframe(1)
    _answer["place"] = caller.f_code.co_filename, caller.f_lineno


def _replace_trainers(module: Any) -> None:
    """Let a program end where it makes a trainer."""
    for cls in _list_classes(module, "Trainer"):
        method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Trainer")).lower()
        known = [*inspect.signature(cls.__init__).parameters][1:]
        cls.__init__ = partialmethod(_describe_and_end, method, known)


def _describe_and_end(trainer: Any, method: str, known: list[str], *args: Any, **kwargs: Any) -> None:
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    config, adapter = given.get("args"), given.get("peft_config")
    tree = {**getattr(config, "given", {}), "use_peft": adapter is not None, **_read_given(given.get("model"))}
    of_model = tree.pop("model_init_kwargs", None) or {}
    tree.update({key: value for key, value in of_model.items() if key in _OF_MODEL})
    if adapter is not None:
        tree["lora_r"] = getattr(adapter, "r", 8)
    trl = importlib.import_module("trl")
    described = _describe_parser(trl.TrlParser([one for one in (type(config), trl.ModelConfig) if config]), method)
    _end(**described, tree=tree, program=f"trl {method}")


def _list_classes(module: Any, ending: str) -> list[Any]:
    classes = [one for name, one in vars(module).items() if name.endswith(ending) and inspect.isclass(one)]
    return [cls for cls in classes if cls.__module__ == module.__name__]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
