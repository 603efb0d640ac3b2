"""Compose configurations in a process of its own, which imports Hydra and no trainer.

Started as a script: reads jobs as JSON from standard input, one after the other, and writes their answers.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from pytest_rlregress.commands.moved.findings import REQUIRED
from pytest_rlregress.commands.preflight import stops

_MOST = 10_000  # values of one configuration


def compose(job: dict[str, Any]) -> dict[str, Any]:
    """Compose one configuration.

    Args:
        job: ``folder`` of configuration files with the ``name`` of one, or ``generated``, the text of a composed one;
            ``words``, overrides for Hydra; ``laid``, values by dotted key, over all; ``search``, more folders.

    Returns:
        ``values`` by dotted key, ``???`` for what can't be resolved here; ``refused``, the keys that are refused; or
        ``error``.
    """
    from omegaconf import OmegaConf

    try:
        if "generated" in job:
            config, refused = _lay_over_generated(job)
        else:
            config, refused = _compose_folder(job)
        for key, value in job["laid"].items():
            if _has(config, key):
                OmegaConf.update(config, key, value, merge=True)
            else:
                refused.append(key)
        values = dict(_flatten(stops.resolve(config)))
        for key in [key for key, value in values.items() if value == "???"]:
            if _is_missing(config, key):
                values[key] = REQUIRED
    except ModuleNotFoundError as error:
        return {"error": f"{error.name} isn't installed here: pip install hydra-core"}
    except Exception as error:  # of Hydra, OmegaConf, YAML or a resolver
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    return {"values": dict([*values.items()][:_MOST]), "refused": refused}


def _compose_folder(job: dict[str, Any]) -> tuple[Any, list[str]]:
    import hydra

    words = list(job["words"])
    if job.get("search"):
        words.append(f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in job['search'])}]")
    os.chdir(job.get("working") or job["folder"])
    with hydra.initialize_config_dir(job["folder"], version_base=None):
        config, _, refused = stops.compose_accepted(hydra, hydra.compose, job["name"], words)
    return config, refused


def _lay_over_generated(job: dict[str, Any]) -> tuple[Any, list[str]]:
    """Lay overrides over a composed configuration, by Hydra's rules."""
    import yaml
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf, open_dict

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    config = OmegaConf.create(yaml.load(job["generated"], loader))
    refused = []
    for override in OverridesParser.create().parse_overrides(job["words"]):
        key = override.key_or_group
        if key == "model_engine":  # which file was read says it
            continue
        there, before = _has(config, key), _select(config, key)
        adds = override.is_add() or override.is_force_add()
        if not there and not adds:
            refused.append(key)
        elif override.is_delete():
            table, _, name = key.rpartition(".")
            with open_dict(config):
                del (OmegaConf.select(config, table) if table else config)[name]
        else:
            if override.is_add() and before is not None:
                refused.append(key)
            with open_dict(config):
                OmegaConf.update(config, key, override.value(), merge=True, force_add=True)
    return config, refused


def _has(config: Any, key: str) -> bool:
    table, _, name = key.rpartition(".")
    inside = _select(config, table) if table else config
    return hasattr(inside, "keys") and name in inside


def _select(config: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    try:
        return OmegaConf.select(config, key)
    except Exception:  # a reference that can't be followed
        return "???"


def _is_missing(config: Any, key: str) -> bool:
    """Return whether a key is one without a value, and not one whose reference can't be followed."""
    from omegaconf import OmegaConf

    table, _, name = key.rpartition(".")
    inside = _select(config, table) if table else config
    return OmegaConf.is_config(inside) and OmegaConf.is_missing(inside, name)


def _flatten(tree: dict[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{table}{name}.")
        else:
            yield f"{table}{name}", value if re.match("<|object", str(value)) is None else "???"


if __name__ == "__main__":
    json.dump([compose(job) for job in json.load(sys.stdin)], sys.stdout, default=str)
