"""Which checks a real run doesn't allow, each with the reason: those of every run, and those of this step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_rlregress.commands.rehearse.guard import BROKEN
from pytest_rlregress.commands.rehearse.record import RehearsalRecord

NO_PASS = "it takes further passes of a batch, and a real run gets none"
NO_MODEL = "it takes a second model beside the one that is trained"
#: Of each step of every run.
ALWAYS = {
    "engine's prompts": "the engine's own inputs aren't read in a real run",
    "sync": "reading all weights of the engine takes too long in a real run",
    "second pass": NO_PASS,
    "cached prompts": "a real run's engine is asked for nothing more",
    "micro batches": NO_PASS,
    "masked tokens": NO_PASS,
    "loss": NO_MODEL,
    "gradient's norm": NO_MODEL,
    "direction": NO_MODEL,
    "gradients": "the gradients aren't read in a real run",
}
#: Checks of the run.
OF_RUN = {
    "reward functions": "they aren't called but by the trainer: rehearse without --as-is tries them",
    "prompt lengths": "not all rows are looked at: rehearse without --as-is does",
    "checkpoint": "what your run saves isn't read",
    "resume": "a real run isn't started a second time",
}
#: Parts of a trainer that put several turns into one completion.
TURNS = ("tools", "environment_factories", "environment_factory", "rollout_func")


def find_why_no_prompts(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return why the ids of the prompts can't be known from their text; "" if they can."""
    if find_turns(trainer):
        return f"the trainer's {find_turns(trainer)} has a part in the prompts"
    if getattr(trainer, "_is_vlm", False) or {"image", "images"} & set(rows[0]):
        return "there are images in the prompts"
    if getattr(trainer, "chat_template", None):
        return "the trainer has a chat template of its own"
    if getattr(trainer, "max_prompt_length", None):
        return "max_prompt_length cuts prompts"
    return ""


def find_turns(trainer: Any) -> str:
    """Return which part of a trainer makes several turns; "" if none does."""
    return next((name for name in TURNS if getattr(trainer, name, None)), "")


def find(trainer: Any, rollout: Mapping[str, Any], step: Mapping[str, Any], is_broken: bool) -> dict[str, str]:
    """Return the checks that this step doesn't allow, each with the reason."""
    unseen = {**ALWAYS, **_find_of_rollout(trainer, rollout, step), **_find_of_update(trainer, rollout, step)}
    if is_broken:
        known = {"number", "longest", "ending_ids", "epsilon", "group_size", "unmoved", *rollout, *step}
        known -= set() if step.get("completes") else {"trained_tokens"}
        needed = {name: fields or ("rewards",) for name, (fields, _) in RehearsalRecord.properties.items()}
        missing = (name for name, fields in needed.items() if not known.issuperset(fields))
        unseen |= {name: BROKEN for name in missing if name not in ALWAYS}
    return unseen


def _find_of_rollout(trainer: Any, rollout: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, str]:
    unseen: dict[str, str] = {}
    rows, size = rollout.get("rows", 0), trainer.num_generations
    if rows % size:
        spread = f"rank 0 has {rows} rows, and a group has {size}"
        unseen |= dict.fromkeys(("groups", "completions"), spread)
    turns = find_turns(trainer)
    if turns:
        unseen["completions"] = f"a completion has several turns: the trainer has {turns}"
    if "expected_prompts" not in rollout and "rows" in rollout:
        unseen["prompts"] = find_why_no_prompts(trainer, [{}]) or "there are images in the prompts"
    if not step.get("completes"):
        part = f"the {rows} completions are trained on in several steps, or again"
        unseen |= dict.fromkeys(("mask", "prompts", "advantages"), part)
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        unseen["advantages"] = f"TRL aggregates by {trainer.multi_objective_aggregation}"
    elif "wanted" not in rollout and "rewards" in rollout:
        unseen["advantages"] = f"scale_rewards is {trainer.scale_rewards}"
    elif any(isinstance(one, list) for one in rollout.get("advantages", ())):
        unseen["advantages"] = "the trainer has an advantage for each token"
    if "reward_difference" not in rollout:
        unseen["rewards used"] = "no function gave a list of them"
    if not has_spread(rollout.get("rewards", ())):
        unseen["spread of rewards"] = "all rewards of each group that rank 0 has are equal"
    return unseen


def _find_of_update(trainer: Any, rollout: Mapping[str, Any], step: Mapping[str, Any]) -> dict[str, str]:
    unseen: dict[str, str] = {}
    fresh = trainer.state.global_step == rollout.get("number")
    again = f"the step trains again on what was sampled for step {rollout.get('number')}"
    if "gap" not in step:
        without = (
            "TRL has no log-probabilities of the engine in its batch" if trainer.use_vllm else "there is no engine"
        )
        unseen["agreement"] = without if fresh else again
    if "ratio_difference" not in step:
        unseen["ratio"] = "TRL computes no old log-probabilities here: its ratio is 1" if fresh else again
    if trainer.state.global_step > 1 or "reference_difference" not in step:
        unseen["reference"] = "of the first step" if trainer.beta else "beta is 0: there is no reference model"
    norm, still = step.get("grad_norm"), "with equal rewards in each group there is nothing to learn"
    if norm is None:
        unseen["gradient"] = "the trainer's norm of it is spread over processes, or isn't computed"
    elif trainer.args.fp16 and not math.isfinite(norm):
        unseen |= dict.fromkeys(("gradient", "update"), "fp16's scaler left this update out")
    elif norm == 0 and not has_spread(rollout.get("own_rewards", ())):
        unseen |= dict.fromkeys(("gradient", "update"), still)
    if step.get("learning_rate") == 0:
        unseen["update"] = "the learning rate is 0 in this step, as in a warm-up's first"
    elif not step.get("looked_at"):
        unseen["update"] = "rank 0 holds no part of the trained weights"
    return unseen


def has_spread(groups: Sequence[Sequence[float]]) -> bool:
    """Return whether the rewards of a group differ."""
    return any(len({one for one in group if one == one}) > 1 for group in groups)
