"""Stand in for Hydra in the child: write the composed configuration, and end the process.

Like ``child.py``, which imports it, it runs in the command's interpreter, where this package may not be installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

# What the command finds in its environment until its configuration is composed: no GPU, and nothing for W&B to do.
_HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled"}
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

answer: dict[str, Any] = {"refused": []}
_answer_file = Path()
_environ = dict(os.environ)


def begin(file: str) -> None:
    """Name the answer's file; its folder is the only one that may be written to."""
    global _answer_file
    _answer_file = Path(file).resolve()
    os.environ.update(_HIDDEN)
    tempfile.tempdir = str(_answer_file.parent)


def folder() -> Path:
    """Return the folder of the answer."""
    return _answer_file.parent


def end(**found: Any) -> None:
    """Write the answer and end the process, without what the command does when it ends."""
    _show_environment()
    changed = {name: text for name, text in os.environ.items() if _environ.get(name) != text}
    text = json.dumps({**answer, **found, "environ": changed}, default=make_plain)
    _answer_file.write_text(text, encoding="utf-8")
    os._exit(0)


def _show_environment() -> None:
    for name, hidden in _HIDDEN.items():
        if os.environ.get(name) == hidden:
            os.environ.pop(name)
            os.environ.update({name: _environ[name]} if name in _environ else {})


def make_plain(value: Any) -> Any:
    """Return a value that JSON doesn't have as one that it has."""
    return value.value if isinstance(value, Enum) else str(value).removeprefix("torch.")


def note_launcher(options: argparse.Namespace) -> None:
    """Note how many processes a launcher starts, and its file."""
    count = str(getattr(options, "nproc_per_node", None) or options.num_processes)
    found = {"num_processes": int(count) if count.isdecimal() else None}
    found["config_file"] = getattr(options, "config_file", None)
    answer["launcher"] = {key: value for key, value in found.items() if value is not None}


def _find_folder(package: str) -> str:
    spec = importlib.util.find_spec(package)
    return spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""


def find_release(package: str) -> str:
    """Return a package with its version, if it is installed and not only a folder on the path."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path
        return package


def find_values(trainer: str, method: str = "") -> dict[str, list[str]]:
    """Return the texts that keys take, by the source of the trainer, as far as there are several."""

    def read(file: str) -> list[str]:
        package, _, inside = file.partition("/")
        return [one.read_text(encoding="utf-8") for one in Path(_find_folder(package)).glob(inside)]

    return match_values(trainer, method, read)


def match_values(trainer: str, method: str, read: Callable[[str], Iterable[str]]) -> dict[str, list[str]]:
    """Return the texts that keys take, in the sources that ``read`` returns for a pattern of files."""
    found = {}
    for key, (file, name) in _TEXTS.items():
        if ("." in key) == (trainer == "verl"):
            given = rf"\b{name}(?:\s*(?:==|=|in)\s*|\()(?:Literal)?[\[({{]?\s*((?:[\"'][^\"'\n]+[\"'],?\s*)+)"
            sources = read(file.format(method))
            groups = " ".join(group for source in sources for group in re.findall(given, source))
            found[key] = sorted({*re.findall(r"[\"']([\w.-]+)[\"']", groups)})
    return {key: texts for key, texts in found.items() if len(texts) > 1}


def compose_accepted(hydra: Any, compose: Any, name: Any, words: Iterable[str]) -> tuple[Any, list[str], list[str]]:
    """Compose a configuration with the overrides that Hydra accepts; return it, those, and the keys of the others.

    An addition that Hydra refuses because the key is there changes the key instead.
    """
    left = list(words)
    refused: list[str] = []
    while True:
        try:
            return compose(name, left), left, refused
        except hydra.errors.ConfigCompositionException as error:
            found = re.match(r"Could not (override|append to|delete from)[^']*'([^']+)'", str(error))
            keys = [word.lstrip("+~").partition("=")[0] for word in left]
            if not found or found[2] not in keys:
                raise
            refused.append(found[2])
            at = keys.index(found[2])
            left[at : at + 1] = [left[at].lstrip("+")] if found[1] == "append to" else []


def replace_hydra(hydra: Any) -> None:
    """Let a program end where it composes its configuration, with what Hydra refuses noted and left out."""
    compose = hydra.compose

    def compose_and_end(config_name: Any = None, overrides: Any = (), **_: Any) -> None:
        config, left, refused = compose_accepted(hydra, compose, config_name, overrides)
        answer["refused"] += refused
        not_added = [word for word in left if not word.startswith("+")]
        end(**_describe_verl(config, config if not_added == left else compose(config_name, not_added)))

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
    values = find_values("verl")
    core = sys.modules.get("verl.trainer.ppo.core_algos")
    registered = map(make_plain, getattr(core, "ADV_ESTIMATOR_REGISTRY", ()))
    values[_ADVANTAGE] = sorted({*values.get(_ADVANTAGE, ()), *registered})
    return {
        "trainer": "verl",
        "release": find_release("verl"),
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
