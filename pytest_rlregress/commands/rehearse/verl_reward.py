"""The reward function of a run of verl's, as verl finds it, and what verl refuses of the configuration as written."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from pytest_rlregress.commands.rehearse import events, reward_trial
from pytest_rlregress.commands.rehearse.shrink import GENERATIONS
from pytest_rlregress.fixtures.verl_settings import ROLLOUT

Get = Callable[[str], Any]
_KEY = "reward.custom_reward_function"


def validate(tree: dict[str, Any]) -> None:
    """Let verl validate a configuration with the user's sizes; end with what it refuses of it.

    Raises:
        SystemExit: It refuses it, and so it would the user's run.
    """
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = OmegaConf.create(tree)
    try:
        validate_config(config, need_reference_policy(config), need_critic(config))
    except Exception as error:  # what it can't compute with is an error of any kind
        text = f"{type(error).__name__}: {error}"
        events.write("refused", text=text, by="verl")
        raise SystemExit(f"rlregress rehearse: verl refuses the configuration: {text}") from None


def find(get: Get) -> Any:
    """Return the reward function of a configuration.

    Raises:
        ValueError: Its file can't be read, or has no such function.
    """
    path, name = get(f"{_KEY}.path"), get(f"{_KEY}.name")
    if not path:
        from verl.utils.reward_score import default_compute_score

        return default_compute_score
    file = os.path.expanduser(str(path))
    if not os.path.isfile(file):
        raise ValueError(f"{_KEY}.path: there is no file {path}")
    spec = importlib.util.spec_from_file_location("custom_module", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{_KEY}.path: {path} isn't a module of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules["custom_module"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{_KEY}.path: {path} can't be imported: {type(error).__name__}: {error}") from None
    if not callable(getattr(module, str(name), None)):
        raise ValueError(f"{_KEY}.name: {path} has no function {name}")
    return getattr(module, str(name))


def adapt(score: Any, more: dict[str, Any]) -> Any:
    """Return a reward function as ``reward_trial`` calls one, which calls verl's once a completion."""

    def call(completions: list[Any], data_source: list[Any], ground_truth: list[Any], **columns: Any) -> list[Any]:
        infos = columns.get("extra_info") or [{}] * len(completions)
        found = []
        for one, source, answer, info in zip(completions, data_source, ground_truth, infos, strict=True):
            text = one if isinstance(one, str) else one[0]["content"]
            given = score(
                data_source=source, solution_str=text, ground_truth=answer, extra_info=dict(info or {}), **more
            )
            if inspect.iscoroutine(given):
                given = asyncio.run(given)
            found.append(given["score"] if isinstance(given, dict) else given)
        return found

    call.__name__ = getattr(score, "__name__", type(score).__name__)
    return call


def run(score: Any, rows: Any, get: Get) -> None:
    """Try a run's reward function, and write what it gave."""
    more = get(f"{_KEY}.reward_kwargs") or {}
    size = min(get(f"{ROLLOUT}.n") or 1, GENERATIONS)
    reward_trial.run(adapt(score, dict(more)), rows, max(2, size), rows)
