"""Read which keys and values the installed verl and TRL take, from their own files and without importing them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pytest_rlregress.preflight.known_keys import known_schema
from pytest_rlregress.preflight.schema import Schema
from pytest_rlregress.preflight.sources import (
    FieldSource,
    classes_in,
    fields_of,
    folder_of,
    release_of,
    texts_of,
)
from pytest_rlregress.util.nested import walk

# Where the source has the values of a key: files from the package's folder, names in them.
_VALUES_OF_VERL = {
    "algorithm.adv_estimator": (
        ("trainer/ppo/core_algos.py", "AdvantageEstimator"),
        ("trainer/ppo/core_algos.py", "register_adv_est"),
    ),
    "actor_rollout_ref.actor.policy_loss.loss_mode": (("trainer/ppo/core_algos.py", "register_policy_loss"),),
    "actor_rollout_ref.actor.loss_agg_mode": (("trainer/ppo/core_algos.py", "loss_agg_mode"),),
    "critic.loss_agg_mode": (("trainer/ppo/core_algos.py", "loss_agg_mode"),),
    "actor_rollout_ref.actor.strategy": (("workers/engine/*/*.py", "backend"),),
    "actor_rollout_ref.rollout.name": (("workers/rollout/replica.py", "RolloutReplicaRegistry.register"),),
    "actor_rollout_ref.rollout.dtype": (("../vllm/config/model.py", "ModelDType"),),
}
_VALUES_OF_TRL = {
    "loss_type": (("trainer/{method}_trainer.py", "loss_type"),),
    "scale_rewards": (("trainer/{method}_trainer.py", "scale_rewards"),),
    "vllm_mode": (("trainer/{method}_trainer.py", "vllm_mode"), ("generation/vllm_generation.py", "mode")),
    "optim": (("../transformers/training_args.py", "OptimizerNames"),),
    "lr_scheduler_type": (("../transformers/trainer_utils.py", "SchedulerType"),),
}


@cache
def verl_schema() -> Schema:
    """Return the schema of the installed verl, from the YAML that it composes of its own for reference."""
    folder = folder_of("verl")
    files = sorted((folder / "trainer" / "config").glob("_generated*.yaml")) if folder else []
    if not folder or not files:
        return known_schema("verl")
    keys: dict[str, Any] = {"model_engine": ""}
    composed: list[dict[str, Any]] = []
    for file in [*sorted(folder.glob("experimental/*/config/*.yaml")), *files]:
        loaded = yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        composed.append(dict(walk(loaded)))
        for key, value in composed[-1].items():
            keys[key] = value if isinstance(value, dict) or key not in keys else keys[key]
    of_engines = composed[-len(files) :]
    tables = {key for key, value in keys.items() if isinstance(value, dict) and value}
    sources = [*folder.glob("workers/config/*.py"), *folder.glob("trainer/config/*.py"), *folder.glob("utils/**/*.py")]
    classes = classes_in([*sources, folder / "base_config.py"])
    targets = {key.rpartition(".")[0]: str(one).rpartition(".")[2] for key, one in keys.items() if "_target_" in key}
    return Schema(
        release_of("verl"),
        True,
        frozenset(key for key in keys if not key.endswith("_target_")),
        frozenset(tables),
        {table: frozenset(fields_of(name, classes)) for table, name in targets.items() if name in classes},
        _values(folder, _VALUES_OF_VERL),
        preset=frozenset(key for key in keys if all(_is_value(one.get(key)) for one in of_engines)),
        folder=folder,
    )


def _is_value(value: Any) -> bool:
    """Return whether it is a value, and no reference to another key without a value for the case that it has none."""
    return value is not None and not isinstance(value, dict) and not re.search(r"\$\{[^,]*\}|,\s*null\}", str(value))


@cache
def trl_schema(methods: tuple[str, ...]) -> Schema:
    """Return the options of these commands of the installed TRL, such as ``grpo``, together; of all without any."""
    folder, transformers = folder_of("trl"), folder_of("transformers")
    if not folder or not transformers:
        return known_schema("trl")
    configs = [*folder.glob("trainer/*_config.py"), *folder.glob("experimental/*/*_config.py")]
    shared = [folder / "scripts" / "utils.py", transformers / "training_args.py"]
    classes = classes_in([*configs, *folder.glob("scripts/*.py"), *shared])
    own = {f"{method.replace('_', '')}{kind}" for method in methods for kind in ("config", "scriptarguments")}
    every = re.compile(r"[A-Z]\w*(?:Config|ScriptArguments)")
    named = [name for name in classes if (name.lower() in own if methods else every.fullmatch(name))]
    fields: dict[str, FieldSource] = {}
    for name in ("ScriptArguments", "ModelConfig", "DatasetMixtureConfig", *named):
        for key, one in fields_of(name, classes).items():
            same = key not in fields or fields[key] == one
            fields[key] = one if same else FieldSource(None, ())  # commands that differ in it
    places = {
        key: [(file.format(method=method), name) for file, name in one for method in methods or ("*",)]
        for key, one in _VALUES_OF_TRL.items()
    }
    values = _values(folder, {key: one for key, one in places.items() if key in fields})
    values |= {key: one.choices for key, one in fields.items() if one.choices}
    keys = {*fields, *(f"no_{key}" for key, one in fields.items() if one.default is True), *_options_of_accelerate()}
    return Schema(
        release_of("trl"),
        True,
        frozenset(keys | {"config", "accelerate", "env", "accelerate_config"}),
        values=values,
        defaults={key: one.default for key, one in fields.items()},
    )


def trl_methods(program: str, keys: frozenset[str]) -> tuple[str, ...]:
    """Return the commands that a program or, without one, most of the options speak for."""
    if program.startswith("trl "):
        return (program.removeprefix("trl "),)
    folder = folder_of("trl")
    methods = [file.name.removesuffix("_config.py") for file in folder.glob("trainer/*_config.py")] if folder else []
    fits = {method: len(keys & trl_schema((method,)).keys) for method in methods if method not in ("base", "model")}
    return tuple(method for method, count in fits.items() if count == max(fits.values()))


def _values(folder: Path, places: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, tuple[str, ...]]:
    values = {}
    for key, one in places.items():
        texts: set[str] = set()
        for pattern, name in one:
            package, _, inside = pattern.removeprefix("../").partition("/")
            there = folder_of(package) if pattern.startswith("../") else folder
            for file in there.glob(inside if pattern.startswith("../") else pattern) if there else ():
                texts |= texts_of(file, name)
        if len(texts) > 1:
            values[key] = tuple(sorted(texts))
    return values


def _options_of_accelerate() -> set[str]:
    """Return the options of ``accelerate launch``, which may stand in TRL's YAML too."""
    folder = folder_of("accelerate")
    file = folder / "commands" / "launch.py" if folder else None
    text = file.read_text(encoding="utf-8") if file and file.is_file() else ""
    return {name.replace("-", "_") for name in re.findall(r'"--([\w-]+)"', text)}
