"""Stand in for TRL's parser and trainers in the child: write what they are given, and end the process.

Like ``child.py``, which imports it, it runs in the command's interpreter, where this package may not be installed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import partialmethod
from typing import Any
from unittest.mock import MagicMock

import stops  # type: ignore[import-not-found]

# What loads a model or data, or starts an engine or a process group, by module.
LOADERS = {
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

_of_file: dict[str, Any] = {}  # what TRL's parser is given by the file of --config


def replace_defaults(utils: Any) -> None:
    """Note what TRL's parser is given by the file of ``--config``."""
    set_defaults = utils.TrlParser.set_defaults_with_config

    def set_defaults_with_config(parser: Any, **given: Any) -> Any:
        _of_file.update(given)
        return set_defaults(parser, **given)

    utils.TrlParser.set_defaults_with_config = set_defaults_with_config


def replace_parser(module: Any) -> None:
    """End the program where its parser would build dataclasses, which may need a GPU."""
    module.HfArgumentParser.parse_args_into_dataclasses = _parse_and_end


def _parse_and_end(parser: Any, args: Any = None, *_: Any, **__: Any) -> None:
    program = stops.answer["program"]
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
        stops.note_launcher(options)
        described["keys"] += ["accelerate_config", *(action.dest for action in launcher._actions)]
    stops.answer["refused"] = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    if _of_file:
        stops.answer["config"] = sys.argv[sys.argv.index("--config") + 1]
    stops.end(**described, tree={**tree, **vars(given)}, options=[*vars(given)])


def _describe_parser(parser: Any, method: str) -> dict[str, Any]:
    """Return the options of a parser of TRL's, their defaults and the texts that they take."""
    actions = [action for action in parser._actions if action.dest != "help"]
    keys = {word.lstrip("-").replace("-", "_") for action in actions for word in action.option_strings}
    choices = {
        action.dest: [str(stops.make_plain(one)) for one in action.choices] for action in actions if action.choices
    }
    return {
        "trainer": "trl",
        "release": stops.find_release("trl"),
        "keys": [*sorted(keys), "config", "accelerate", "env"],
        "defaults": {action.dest: action.default for action in reversed(actions)},  # --name, and not its --no_name
        "values": {**{key: texts for key, texts in stops.find_values("trl", method).items() if key in keys}, **choices},
    }


def replace_loaders(module: Any) -> None:
    """Let what loads a model or data give a mock object."""
    for dotted in LOADERS[module.__name__]:
        owner, _, name = dotted.rpartition(".")
        setattr(getattr(module, owner) if owner else module, name, classmethod(_load) if owner else MagicMock())


def _load(cls: Any, name: Any = None, *_: Any, **given: Any) -> MagicMock:
    loaded = MagicMock()
    of_model = {key: value for key, value in given.items() if key in _OF_MODEL}
    loaded.given = {"dtype": given.get("torch_dtype", "auto"), **of_model}
    loaded.given["model_name_or_path"] = given.get("pretrained_model_name_or_path", name)
    return loaded


def replace_peft(peft: Any) -> None:
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


def replace_configs(module: Any) -> None:
    """Let configurations keep what they are given; their own checks may need a GPU."""
    for cls in _list_classes(module, "Config"):
        cls.__init__, cls.__post_init__ = partialmethod(_keep, cls.__init__), lambda config: None


def _keep(config: Any, make: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    known = [*inspect.signature(make).parameters][1:]
    config.given = {**dict(zip(known, args, strict=False)), **kwargs}
    make(config, **{key: value for key, value in config.given.items() if key in known})
    stops.answer["refused"] += [key for key in config.given if key not in known]
    caller = sys._getframe(1)
    stops.answer["place"] = caller.f_code.co_filename, caller.f_lineno


def replace_trainers(module: Any) -> None:
    """Let a program end where it makes a trainer."""
    for cls in _list_classes(module, "Trainer"):
        method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Trainer")).lower()
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        known = [one.name for one in parameters]
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)  # which another class may take
        cls.__init__ = partialmethod(_describe_and_end, method, known, takes_any)


def _describe_and_end(trainer: Any, method: str, known: list[str], takes_any: bool, *args: Any, **kwargs: Any) -> None:
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    config, adapter = given.get("args"), given.get("peft_config")
    tree = {**getattr(config, "given", {}), "use_peft": adapter is not None, **_read_given(given.get("model"))}
    of_model = tree.pop("model_init_kwargs", None) or {}
    tree.update({key: value for key, value in of_model.items() if key in _OF_MODEL})
    if adapter is not None:
        tree["lora_r"] = getattr(adapter, "r", 8)
    trl = importlib.import_module("trl")
    described = _describe_parser(trl.TrlParser([one for one in (type(config), trl.ModelConfig) if config]), method)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (
        __file__,
        partialmethod.__init__.__code__.co_filename,
    ):
        frame = frame.f_back
    refused = {key: _source_of(frame, key) for key in given if key not in known and not takes_any}
    arguments = {"class": type(trainer).__name__, "known": known, "refused": refused}
    stops.answer["place"] = stops.answer.get("place") or (frame.f_code.co_filename, frame.f_lineno)
    stops.end(**described, tree=tree, program=f"trl {method}", arguments=arguments)


def _source_of(frame: Any, name: str) -> str:
    """Return how the running call writes an argument; "" where its source can't be read."""
    try:
        with open(frame.f_code.co_filename, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError):
        return ""
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    near = [one for one in calls if one.lineno <= frame.f_lineno <= (one.end_lineno or one.lineno)]
    values = [word.value for one in near for word in one.keywords if word.arg == name]
    return ast.unparse(values[-1]) if values else ""


def _list_classes(module: Any, ending: str) -> list[Any]:
    classes = [one for name, one in vars(module).items() if name.endswith(ending) and inspect.isclass(one)]
    return [cls for cls in classes if cls.__module__ == module.__name__]
